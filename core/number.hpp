#pragma once

#include <charconv>
#include <string>
#include <string_view>
#include <type_traits>

#include "core/errors.hpp"

namespace troupe::core {

/// A text of a user's as a message may show it: in quotes, at most its first 40 bytes, with '?' for what does
/// not print.
std::string quoted_excerpt(std::string_view text);

/// What a number may be, both ends included.
template <class Number>
struct Bounds {
  Number least;
  Number most;
};

/// The number that the whole of `text` is, in decimal: "12", "-3", and for floating types "2.5" and "1e-3".
/// Errc::invalid_argument says what was expected and found; NaN and infinity lie in no bounds.
template <class Number>
Result<Number> parse_number(std::string_view text, std::type_identity_t<Bounds<Number>> bounds) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc{} && rest == end && value >= bounds.least && value <= bounds.most) return value;
  return fail(Errc::invalid_argument, "expected a {} from {} to {}, found {}",
              std::is_integral_v<Number> ? "whole number" : "number", bounds.least, bounds.most,
              quoted_excerpt(text));
}

}  // namespace troupe::core
