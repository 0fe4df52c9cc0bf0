#include "apps/troupe/checkpoint/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <variant>

namespace troupe::apps {

namespace {

using core::Value;

std::string key_text(const core::Key& key) {
  const auto* name = std::get_if<std::string>(&key);
  return name != nullptr ? printable(*name) : fmt::format("{}", std::get<std::int64_t>(key));
}

std::string items_text(const Value::List& items, const char* open, const char* close) {
  std::string text = open;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) text += ", ";
    text += value_line(items[i]);
  }
  return text + close;
}

void append_leaves(const std::string& path, const Value& value,
                   std::vector<std::pair<std::string, std::string>>& leaves) {
  const auto* map = value.as_map();
  if (map == nullptr || (map->empty() && !path.empty())) {
    leaves.emplace_back(path, value_line(value));
    return;
  }
  for (const auto& [key, inner] : map->entries()) {
    append_leaves(path.empty() ? key_text(key) : path + "." + key_text(key), inner, leaves);
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

std::string value_line(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::null:
      return "null";
    case Value::Kind::boolean:
      return *value.as_bool() ? "true" : "false";
    case Value::Kind::integer:
      return fmt::format("{}", *value.as_int());
    case Value::Kind::real:
      return fmt::format("{}", *value.as_double());
    case Value::Kind::string:
      return fmt::format("{:?}", *value.as_string());
    case Value::Kind::bytes:
      return fmt::format("<{} bytes>", value.as_bytes()->size());
    case Value::Kind::list:
      return items_text(*value.as_list(), "[", "]");
    case Value::Kind::tuple:
      return items_text(*value.as_tuple(), "(", ")");
    case Value::Kind::map:
      break;
  }
  std::string text = "{";
  for (const auto& [key, inner] : value.as_map()->entries()) {
    if (text.size() > 1) text += ", ";
    text += fmt::format("{}: {}", core::to_string(key), value_line(inner));
  }
  return text + "}";
}

std::vector<std::pair<std::string, std::string>> value_leaves(const Value& value) {
  std::vector<std::pair<std::string, std::string>> leaves;
  if (!value.is_null()) append_leaves("", value, leaves);
  return leaves;
}

}  // namespace troupe::apps
