#pragma once

#include <cstdint>

#include "actors/world/environment.hpp"
#include "core/number.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// Whether the variable is set, and not to nothing.
inline bool has_value(const Variables& variables, const char* name) {
  return !variables(name).value_or("").empty();
}

/// The variable's value, or `fallback` where there is none. Errc::invalid_argument names the variable.
inline core::Result<std::int64_t> read_number(const Variables& variables, const char* name,
                                              std::int64_t fallback, std::int64_t least, std::int64_t most) {
  if (!has_value(variables, name)) return fallback;
  const auto value = core::parse_number<std::int64_t>(*variables(name), {least, most});
  if (!value) return core::fail(value.error().code, "{}: {}", name, value.error().message);
  return *value;
}

}  // namespace troupe::actors
