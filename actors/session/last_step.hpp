#pragma once

#include <optional>

#include "actors/session/outcomes.hpp"
#include "core/ids.hpp"
#include "core/result.hpp"
#include "core/values/value.hpp"

namespace troupe::actors {

/// Among the common values of a save: what was decided on its last step, without times.
inline constexpr const char* kLastStepKey = "last_step";

core::Value value_of(const StepOutcome& outcome);
/// What value_of() wrote about the last of `over` steps; empty for null. Errc::mismatch.
core::Result<std::optional<StepOutcome>> last_step_of(const core::Value* value, core::StepCount over);

}  // namespace troupe::actors
