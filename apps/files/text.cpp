#include "apps/files/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <variant>

namespace troupe::apps {

namespace {

using core::Value;

constexpr std::size_t kMostPathColumns = 100;
constexpr std::size_t kMostLeafColumns = 60;

std::string key_text(const core::Key& key) {
  const auto* name = std::get_if<std::string>(&key);
  return name != nullptr ? printable(*name) : fmt::format("{}", std::get<std::int64_t>(key));
}

/// Stops soon after the text has `most` bytes.
void append_value(const Value& value, std::size_t most, std::string& text);

void append_items(const Value::List& items, std::size_t most, std::string& text) {
  for (std::size_t i = 0; i < items.size() && text.size() <= most; ++i) {
    if (i > 0) text += ", ";
    append_value(items[i], most, text);
  }
}

void append_map(const Value::Map& map, std::size_t most, std::string& text) {
  const char* before = "";
  for (const auto& [key, inner] : map.entries()) {
    if (text.size() > most) return;
    text += before;
    text += core::to_string(key);
    text += ": ";
    append_value(inner, most, text);
    before = ", ";
  }
}

void append_value(const Value& value, std::size_t most, std::string& text) {
  switch (value.kind()) {
    case Value::Kind::null:
      text += "null";
      return;
    case Value::Kind::boolean:
      text += *value.as_bool() ? "true" : "false";
      return;
    case Value::Kind::integer:
      text += fmt::to_string(*value.as_int());
      return;
    case Value::Kind::real:
      text += fmt::format("{}", *value.as_double());
      return;
    case Value::Kind::string:
      text += fmt::format("{:?}", std::string_view(*value.as_string()).substr(0, most));
      return;
    case Value::Kind::bytes:
      text += fmt::format("<{} bytes>", value.as_bytes()->size());
      return;
    case Value::Kind::list:
      text += "[";
      append_items(*value.as_list(), most, text);
      text += "]";
      return;
    case Value::Kind::tuple:
      text += "(";
      append_items(*value.as_tuple(), most, text);
      text += ")";
      return;
    case Value::Kind::map:
      text += "{";
      append_map(*value.as_map(), most, text);
      text += "}";
      return;
  }
}

/// The path of the keys that lead to a leaf.
std::string path_of(const std::vector<const core::Key*>& keys, std::size_t most_columns) {
  std::string path;
  for (const auto* key : keys) {
    if (path.size() > most_columns) break;
    if (!path.empty()) path += ".";
    path += shortened(key_text(*key), most_columns);
  }
  return shortened(std::move(path), most_columns);
}

void collect_leaves(const Value& value, std::size_t most, std::vector<const core::Key*>& keys,
                    Leaves& leaves) {
  const auto* map = value.as_map();
  if (map == nullptr || (map->empty() && !keys.empty())) {
    if (leaves.count++ < most)
      leaves.first.emplace_back(path_of(keys, kMostPathColumns), value_line(value, kMostLeafColumns));
    return;
  }
  for (const auto& [key, inner] : map->entries()) {
    keys.push_back(&key);
    collect_leaves(inner, most, keys, leaves);
    keys.pop_back();
  }
}

}  // namespace

std::string printable(std::string_view text) {
  const bool steers = std::any_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == 0x7f;
  });
  return steers ? fmt::format("{:?}", text) : std::string(text);
}

std::string shortened(std::string text, std::size_t columns) {
  if (text.size() <= columns) return text;
  text.resize(columns - 3);
  // Not within a character of several bytes.
  while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0xc0) == 0x80) text.pop_back();
  if (!text.empty() && static_cast<unsigned char>(text.back()) >= 0xc0) text.pop_back();
  return text + "...";
}

std::string bytes_text(std::uint64_t bytes) {
  if (bytes < 1000) return fmt::format("{} B", bytes);
  auto value = static_cast<double>(bytes);
  const char* unit = "";
  for (const char* larger : {"kB", "MB", "GB", "TB", "PB"}) {
    if (value < 999.5) break;
    value /= 1000;
    unit = larger;
  }
  return fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, unit);
}

std::string value_line(const Value& value, std::size_t most_columns) {
  std::string text;
  append_value(value, most_columns, text);
  return shortened(std::move(text), most_columns);
}

Leaves value_leaves(const Value& value, std::size_t most) {
  Leaves leaves;
  std::vector<const core::Key*> keys;
  if (!value.is_null()) collect_leaves(value, most, keys, leaves);
  return leaves;
}

}  // namespace troupe::apps
