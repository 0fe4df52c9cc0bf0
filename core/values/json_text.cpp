#include "core/values/json_text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

namespace troupe::core {

namespace {

using Json = nlohmann::json;

bool is_printable(char c) {
  return c >= ' ' && c <= '~';
}

}  // namespace

void append_string(std::string& json, std::string_view text) {
  if (!std::all_of(text.begin(), text.end(), is_printable)) {
    json += Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
    return;
  }
  json += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') json += '\\';
    json += c;
  }
  json += '"';
}

void append_number(std::string& json, std::uint64_t number) {
  std::array<char, 20> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
  json.append(digits.data(), end);
}

void append_sizes(std::string& json, std::span<const std::int64_t> sizes) {
  json += '[';
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (i > 0) json += ',';
    append_number(json, static_cast<std::uint64_t>(sizes[i]));
  }
  json += ']';
}

}  // namespace troupe::core
