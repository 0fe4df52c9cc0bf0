#pragma once

#include "core/ids.hpp"

namespace troupe::core {

// A step that was not committed is over too: the next one has the next number.

/// How many steps are over when `last` is; none when it is -1.
constexpr StepCount steps_through(Step last) {
  return {last.value + 1};
}
/// The last of so many steps; -1 when there are none.
constexpr Step last_step(StepCount over) {
  return {over.value - 1};
}

/// How many steps are over when `next` comes next.
constexpr StepCount steps_before(Step next) {
  return {next.value};
}
/// The step that comes next.
constexpr Step next_step(StepCount over) {
  return {over.value};
}

}  // namespace troupe::core
