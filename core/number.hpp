#pragma once

#include <charconv>
#include <string>
#include <string_view>
#include <type_traits>

#include "core/errors.hpp"

namespace troupe::core {

/// User-supplied text in a form that a message may show: in quotes, at most its first 40 bytes, with '?' for
/// unprintable characters.
std::string quoted_excerpt(std::string_view text);

/// The bounds of a number, both inclusive.
template <class Number>
struct Bounds {
  Number least;
  Number most;
};

/// Parses the whole of `text` as a decimal number: "12", "-3", and for floating types "2.5" and "1e-3".
/// Errc::invalid_argument says what was expected and found; NaN and infinity are outside of any bounds.
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
