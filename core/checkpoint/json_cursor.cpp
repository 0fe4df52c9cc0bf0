#include "core/checkpoint/json_cursor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

namespace troupe::core {

namespace {

constexpr std::uint64_t kMaxSize = std::uint64_t{1} << 62;
constexpr std::size_t kHexDigits = 16;

/// The length of a string that begins with a quote, including both quotes; npos if it does not end.
std::size_t quoted_length(std::string_view text) {
  for (std::size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '"') return i + 1;
    if (text[i] == '\\') ++i;
  }
  return std::string_view::npos;
}

bool is_plain(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~' && c != '\\'; });
}

}  // namespace

void JsonCursor::complain(std::string_view what) {
  if (is_good()) complaint_ = fmt::format("{} (before byte {})", what, at_);
}

bool JsonCursor::skip(std::string_view bytes) {
  if (!is_good() || !rest().starts_with(bytes)) return false;
  at_ += bytes.size();
  return true;
}

void JsonCursor::expect(std::string_view bytes) {
  if (!skip(bytes)) complain(fmt::format("expected '{}'", bytes.substr(0, bytes.find('\n'))));
}

void JsonCursor::expect_end() {
  if (at_ != text_.size()) complain("expected the end");
}

std::uint64_t JsonCursor::number(std::uint64_t most) {
  if (!is_good()) return 0;
  std::uint64_t value = 0;
  const char* begin = text_.data() + at_;
  const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
  if (error != std::errc{} || value > most || (*begin == '0' && end != begin + 1)) {
    complain(fmt::format("expected a number from 0 to {}", most));
    return 0;
  }
  at_ += static_cast<std::size_t>(end - begin);
  return value;
}

std::string JsonCursor::string() {
  const std::size_t length =
      is_good() && rest().starts_with('"') ? quoted_length(rest()) : std::string_view::npos;
  if (length == std::string_view::npos) {
    complain("expected a string");
    return {};
  }
  const auto quoted = rest().substr(0, length);
  const auto inner = quoted.substr(1, length - 2);
  std::string value(inner);
  if (!is_plain(inner)) {
    const auto json = nlohmann::json::parse(quoted, nullptr, false);
    if (!json.is_string()) {
      complain("expected a string of UTF-8");
      return {};
    }
    value = json.get<std::string>();
  }
  at_ += length;
  return value;
}

std::uint64_t JsonCursor::hash() {
  const auto digits = rest().substr(0, kHexDigits + 2);
  const auto inner = digits.substr(std::min<std::size_t>(1, digits.size()), kHexDigits);
  const bool good = is_good() && digits.size() == kHexDigits + 2 && digits.front() == '"' &&
                    digits.back() == '"' &&
                    inner.find_first_not_of("0123456789abcdef") == std::string_view::npos;
  std::uint64_t value = 0;
  if (!good) {
    complain("expected a hash of 16 hexadecimal digits");
    return 0;
  }
  std::from_chars(inner.data(), inner.data() + inner.size(), value, 16);
  at_ += digits.size();
  return value;
}

Shape JsonCursor::sizes() {
  Shape sizes;
  expect("[");
  if (skip("]")) return sizes;
  do {
    sizes.push_back(static_cast<std::int64_t>(number(kMaxSize)));
    if (sizes.size() > kMaxAxes) complain(fmt::format("expected at most {} sizes", kMaxAxes));
  } while (skip(","));
  expect("]");
  return sizes;
}

std::string_view JsonCursor::value() {
  const auto text = is_good() ? rest() : std::string_view{};
  std::size_t length = 0;
  for (std::size_t depth = 0; length < text.size(); ++length) {
    const char c = text[length];
    const bool closes = c == '}' || c == ']';
    if (depth == 0 && (closes || c == ',' || c == '\n')) break;
    if (c == '{' || c == '[') ++depth;
    if (closes) --depth;
    if (c != '"') continue;
    const auto quoted = quoted_length(text.substr(length));
    if (quoted == std::string_view::npos) {
      complain("expected a value");
      return {};
    }
    length += quoted - 1;
  }
  at_ += length;
  return text.substr(0, length);
}

}  // namespace troupe::core
