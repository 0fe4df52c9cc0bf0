#include "apps/files/dcp_values.hpp"

#include <optional>
#include <utility>

namespace troupe::apps {

using core::Value;

namespace {

Value shape_value(const core::Shape& shape) {
  Value::List items;
  for (const auto extent : shape) items.emplace_back(extent);
  return items;
}

std::optional<core::Shape> shape_from(const Value* value) {
  if (value == nullptr || value->as_list() == nullptr) return std::nullopt;
  core::Shape shape;
  for (const auto& item : *value->as_list()) {
    if (!item.as_int() || *item.as_int() < 0) return std::nullopt;
    shape.push_back(*item.as_int());
  }
  return shape;
}

std::optional<core::ManifestObject> object_from(Value& value) {
  auto* map = value.as_map();
  if (map == nullptr) return std::nullopt;
  const auto* key = map->find("key");
  auto* content = map->find("value");
  auto grid = shape_from(map->find("grid"));
  auto cell = shape_from(map->find("cell"));
  if (key == nullptr || key->as_string() == nullptr || content == nullptr || !grid || !cell)
    return std::nullopt;
  return core::ManifestObject{*key->as_string(), std::move(*grid), std::move(*cell), std::move(*content)};
}

}  // namespace

bool take_dcp_values(Value& value, core::Manifest& manifest) {
  auto* map = value.as_map();
  const auto* step = map != nullptr ? map->find("step") : nullptr;
  auto* common = map != nullptr ? map->find("common") : nullptr;
  auto* topology = map != nullptr ? map->find("topology") : nullptr;
  auto* objects = map != nullptr ? map->find("objects") : nullptr;
  if (step == nullptr || !step->as_int() || *step->as_int() < 0 || common == nullptr || topology == nullptr ||
      objects == nullptr || objects->as_list() == nullptr)
    return false;
  std::vector<core::ManifestObject> cells;
  for (auto& item : *objects->as_list()) {
    auto object = object_from(item);
    if (!object) return false;
    cells.push_back(std::move(*object));
  }
  manifest.step = core::StepCount{*step->as_int()};
  manifest.common = std::move(*common);
  manifest.topology = std::move(*topology);
  manifest.objects = std::move(cells);
  return true;
}

Value dcp_values_of(const core::Manifest& manifest) {
  Value::List objects;
  for (const auto& object : manifest.objects) {
    objects.push_back(Value::Map{{"key", object.key},
                                 {"grid", shape_value(object.grid)},
                                 {"cell", shape_value(object.cell)},
                                 {"value", object.value}});
  }
  return Value::Map{{"step", manifest.step.value},
                    {"save", manifest.save},
                    {"topology", manifest.topology},
                    {"common", manifest.common},
                    {"objects", std::move(objects)}};
}

}  // namespace troupe::apps
