#pragma once

#include "core/ids.hpp"

namespace troupe::core {

// A step that was not committed is complete too: the next one has the next number.

/// The number of steps completed when `last` is; none if it is -1.
constexpr StepCount steps_through(Step last) {
  return {last.value + 1};
}
/// The last of this many steps; -1 if there are none.
constexpr Step last_step(StepCount over) {
  return {over.value - 1};
}

/// The number of steps completed when `next` is the next one.
constexpr StepCount steps_before(Step next) {
  return {next.value};
}
/// The next step.
constexpr Step next_step(StepCount over) {
  return {over.value};
}

}  // namespace troupe::core
