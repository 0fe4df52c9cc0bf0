#include "core/checkpoint/values_text.hpp"

#include <nlohmann/json.hpp>

namespace troupe::core {

namespace {

using Json = nlohmann::json;

Result<Json> parse_json(std::string_view text) {
  auto deep = [](int depth, Json::parse_event_t, Json&) { return depth < 3 * kMaxValueDepth; };
  Json json = Json::parse(text, deep, false);
  if (json.is_discarded()) return fail(Errc::corrupt, "values do not parse: this is no JSON");
  return json;
}

Result<Shape> shape_of(const Json& json) {
  if (!json.is_array() || json.size() > 64)
    return fail(Errc::corrupt, "an object's place is no list of numbers");
  Shape shape;
  for (const auto& extent : json) {
    if (!extent.is_number_unsigned() || extent.get<std::uint64_t>() > (std::uint64_t{1} << 62))
      return fail(Errc::corrupt, "an object's place is no list of numbers");
    shape.push_back(extent.get<std::int64_t>());
  }
  return shape;
}

}  // namespace

Result<std::string> value_text(const Value& value) {
  return TRY(to_json(value)).dump();
}

Result<Value> parse_value(std::string_view text) {
  return value_from_json(TRY(parse_json(text)));
}

Result<std::string> objects_text(const std::vector<ManifestObject>& objects) {
  Json list = Json::array();
  for (const auto& object : objects) {
    const Box cell{object.cell, Shape(object.cell.size(), 1)};
    if (!cell.lies_in(object.grid))
      return fail(Errc::invalid_argument, "object '{}': the cell {} is not in the grid {}", object.key,
                  to_string(object.cell), to_string(object.grid));
    list.push_back({TRY(to_json(object.key)), object.grid, object.cell, TRY(to_json(object.value))});
  }
  return list.dump();
}

Result<std::vector<ManifestObject>> parse_objects(std::string_view text) {
  const Json list = TRY(parse_json(text));
  if (!list.is_array()) return fail(Errc::corrupt, "objects are no list");
  std::vector<ManifestObject> objects;
  for (const auto& json : list) {
    if (!json.is_array() || json.size() != 4 || !json[0].is_string())
      return fail(Errc::corrupt, "an object is not [key, grid, cell, value]");
    objects.push_back({json[0].get<std::string>(), TRY(shape_of(json[1])), TRY(shape_of(json[2])),
                       TRY(value_from_json(json[3]))});
  }
  return objects;
}

}  // namespace troupe::core
