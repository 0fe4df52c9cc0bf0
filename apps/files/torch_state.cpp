#include "apps/files/torch_state.hpp"

#include <fmt/format.h>

#include <set>
#include <unordered_set>
#include <utility>
#include <variant>

namespace troupe::apps {

using core::KeyPath;
using core::Value;

namespace {

Value path_value(const KeyPath& path) {
  Value::List parts;
  for (const auto& key : path) {
    if (const auto* text = std::get_if<std::string>(&key)) {
      parts.emplace_back(*text);
    } else {
      parts.emplace_back(std::get<std::int64_t>(key));
    }
  }
  return parts;
}

std::optional<KeyPath> path_from(const Value& value) {
  const auto* parts = value.as_list();
  if (parts == nullptr || parts->empty()) return std::nullopt;
  KeyPath path;
  for (const auto& part : *parts) {
    if (part.as_string() != nullptr) {
      path.emplace_back(*part.as_string());
    } else if (part.as_int()) {
      path.emplace_back(*part.as_int());
    } else {
      return std::nullopt;
    }
  }
  return path;
}

void flatten(const Value& value, const std::set<KeyPath>& whole, KeyPath& path,
             std::vector<TorchValue>& into) {
  const auto* map = value.as_map();
  if (map == nullptr || map->empty() || whole.contains(path)) {
    if (!path.empty()) into.push_back({path, value});
    return;
  }
  for (const auto& entry : map->entries()) {
    path.push_back(entry.key);
    flatten(entry.value, whole, path, into);
    path.pop_back();
  }
}

Value numbers_value(const core::Shape& numbers) {
  Value::List list;
  for (const auto number : numbers) list.emplace_back(number);
  return list;
}

core::Shape numbers_from(const Value* value) {
  core::Shape numbers;
  const auto* list = value != nullptr ? value->as_list() : nullptr;
  if (list == nullptr) return numbers;
  for (const auto& number : *list) numbers.push_back(number.as_int().value_or(-1));
  return numbers;
}

/// A part of a tensor, or one that is carried; nothing where it cannot be one.
std::optional<TorchPlace> part_from(const std::string& key, const Value::Map& map) {
  const auto* where = map.find("path");
  auto path = where != nullptr ? path_from(*where) : std::nullopt;
  if (!path) return std::nullopt;
  TorchPlace place{
      key, std::move(*path), numbers_from(map.find("whole")), numbers_from(map.find("offset")), {}};
  const auto* carried = map.find("carried");
  if (carried != nullptr && carried->as_string() != nullptr) place.carried = *carried->as_string();
  bool fits = place.whole.empty() != place.carried.empty();
  fits = fits && place.whole.size() == place.offset.size() && core::check_shape(place.whole);
  for (std::size_t axis = 0; fits && axis < place.whole.size(); ++axis)
    fits = place.offset[axis] >= 0 && place.offset[axis] <= place.whole[axis];
  return fits ? std::optional(std::move(place)) : std::nullopt;
}

}  // namespace

Value value_of(const TorchState& state) {
  std::vector<Value::Entry> tensors;
  tensors.reserve(state.tensors.size());
  std::unordered_set<std::string_view> seen;
  for (const auto& [key, path, whole, offset, carried] : state.tensors) {
    if (!seen.insert(key).second) continue;
    if (!carried.empty()) {
      tensors.push_back({key, Value::Map{{"path", path_value(path)}, {"carried", carried}}});
      continue;
    }
    if (!whole.empty()) {
      tensors.push_back({key, Value::Map{{"path", path_value(path)},
                                         {"whole", numbers_value(whole)},
                                         {"offset", numbers_value(offset)}}});
      continue;
    }
    // Most often a name is all that there is to say.
    const bool is_flat = path.size() == 1 && path.front() == core::Key(key);
    tensors.push_back({key, is_flat ? Value() : path_value(path)});
  }
  Value::List whole;
  for (const auto& path : state.whole) whole.push_back(path_value(path));
  return Value::Map{{"tensors", Value::Map::from_entries(std::move(tensors)).value()},
                    {"whole", std::move(whole)},
                    {"added", Value::List(state.added.begin(), state.added.end())}};
}

std::optional<TorchState> torch_state_of(const Value& common) {
  const auto* kept = common.as_map() != nullptr ? common.as_map()->find(kTorchStateKey) : nullptr;
  const auto* map = kept != nullptr ? kept->as_map() : nullptr;
  const auto* tensors = map != nullptr ? map->find("tensors") : nullptr;
  if (tensors == nullptr || tensors->as_map() == nullptr) return std::nullopt;
  TorchState state;
  for (const auto& entry : tensors->as_map()->entries()) {
    const auto* key = std::get_if<std::string>(&entry.key);
    if (const auto* map_of_part = entry.value.as_map(); key != nullptr && map_of_part != nullptr) {
      auto part = part_from(*key, *map_of_part);
      if (!part) return std::nullopt;
      state.tensors.push_back(std::move(*part));
      continue;
    }
    auto path = path_from(entry.value);
    if (key == nullptr || (!path && !entry.value.is_null())) return std::nullopt;
    state.tensors.push_back({*key, path ? std::move(*path) : KeyPath{*key}, {}, {}, {}});
  }
  const auto items = [&](const char* name) -> const Value::List* {
    const auto* list = map->find(name);
    return list != nullptr ? list->as_list() : nullptr;
  };
  if (const auto* whole = items("whole")) {
    for (const auto& each : *whole) {
      if (auto path = path_from(each)) state.whole.push_back(std::move(*path));
    }
  }
  if (const auto* added = items("added")) {
    for (const auto& each : *added) {
      if (each.as_string() != nullptr) state.added.push_back(*each.as_string());
    }
  }
  return state;
}

std::string dotted(const KeyPath& path) {
  std::string name;
  for (const auto& key : path) {
    if (!name.empty()) name += '.';
    const auto* text = std::get_if<std::string>(&key);
    name += text != nullptr ? *text : fmt::format("{}", std::get<std::int64_t>(key));
  }
  return name;
}

std::vector<TorchValue> flattened(const Value& value, const std::vector<KeyPath>& whole) {
  std::vector<TorchValue> values;
  KeyPath path;
  flatten(value, {whole.begin(), whole.end()}, path, values);
  return values;
}

}  // namespace troupe::apps
