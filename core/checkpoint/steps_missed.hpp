#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/ids.hpp"
#include "core/options/options.hpp"
#include "core/result.hpp"
#include "core/values/value.hpp"

namespace troupe::core {

/// Steps of the optimizer that single parameters did not take, because they came later or had no gradient
/// then: by the name under which checkpoints store the parameter. All others took all.
using StepsMissed = std::map<std::string, std::int64_t>;

/// The key of what value_of() gives, among the common values of a checkpoint.
inline constexpr const char* kStepsMissedKey = "optimizer_steps_missed";

Value value_of(const StepsMissed& missed);

/// What the common values of a checkpoint say, whose optimizer took this many steps; null: nothing.
/// Errc::mismatch for anything but numbers of those steps by name.
Result<StepsMissed> steps_missed_in(const Value* value, StepCount steps);

/// By parameter; empty if none of them missed any. Errc::mismatch names a parameter that is stored in several
/// parts, which did not miss the same.
Result<std::vector<std::int64_t>> steps_missed_by(std::span<const ParameterSpec> parameters,
                                                  const StepsMissed& missed);

}  // namespace troupe::core
