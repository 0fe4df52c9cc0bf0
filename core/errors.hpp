#pragma once

#include <fmt/format.h>

#include <utility>

#include "core/check.hpp"
#include "core/result.hpp"

// How Troupe's own sources create and propagate errors. Installed headers include core/result.hpp and
// core/check.hpp instead, whose macros have a prefix and which need no fmt.

namespace troupe::core {

/// Builds the failed side of a Result: `return fail(Errc::io, "cannot open {}: {}", path, reason);`
template <class... Args>
tl::unexpected<Error> fail(Errc code, fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Error>(Error{code, fmt::format(format, std::forward<Args>(args)...)});
}

}  // namespace troupe::core

#define TRY(expression) TROUPE_TRY(expression)
#define CHECK(condition, sentence) TROUPE_CHECK(condition, sentence)
