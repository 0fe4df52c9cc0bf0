#include "core/checkpoint/values_text.hpp"

#include <cstdint>
#include <utility>

#include "core/errors.hpp"
#include "core/values/json_text.hpp"
#include "core/values/value.hpp"

namespace troupe::core {

namespace {

Result<Shape> shape_of(const Value& value) {
  const auto* extents = value.as_list();
  if (extents == nullptr || extents->size() > 64)
    return fail(Errc::corrupt, "an object's place is not a list of numbers");
  Shape shape;
  for (const auto& extent : *extents) {
    const auto number = extent.as_int();
    if (!number || *number < 0 || *number > std::int64_t{1} << 62)
      return fail(Errc::corrupt, "an object's place is not a list of numbers");
    shape.push_back(*number);
  }
  return shape;
}

}  // namespace

Result<std::string> objects_text(const std::vector<ManifestObject>& objects) {
  std::string text = "[";
  for (const auto& object : objects) {
    const Box cell{object.cell, Shape(object.cell.size(), 1)};
    if (!cell.lies_in(object.grid))
      return fail(Errc::invalid_argument, "object '{}': the cell {} is not in the grid {}", object.key,
                  to_string(object.cell), to_string(object.grid));
    text += text.size() > 1 ? ",[" : "[";
    text += TRY(value_text(object.key)) + ",";
    append_sizes(text, object.grid);
    text += ",";
    append_sizes(text, object.cell);
    text += "," + TRY(value_text(object.value)) + "]";
  }
  return text + "]";
}

Result<std::vector<ManifestObject>> parse_objects(std::string_view text) {
  // The list and an object in it are additional levels.
  Value list = TRY(parse_value(text, kMaxValueDepth + 2));
  if (list.as_list() == nullptr) return fail(Errc::corrupt, "objects are not a list");
  std::vector<ManifestObject> objects;
  for (auto& item : *list.as_list()) {
    auto* parts = item.as_list();
    if (parts == nullptr || parts->size() != 4 || parts->front().as_string() == nullptr)
      return fail(Errc::corrupt, "an object is not [key, grid, cell, value]");
    auto grid = TRY(shape_of((*parts)[1]));
    auto cell = TRY(shape_of((*parts)[2]));
    objects.push_back(
        {*parts->front().as_string(), std::move(grid), std::move(cell), std::move(parts->back())});
  }
  return objects;
}

}  // namespace troupe::core
