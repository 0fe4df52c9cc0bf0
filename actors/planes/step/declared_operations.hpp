#pragma once

#include <vector>

#include "core/options/options.hpp"
#include "core/result.hpp"

namespace troupe::actors {

struct TrainingPlan;

/// Part of plan_training(): puts into the plan what the trainer declares. Where units come and go an
/// operation belongs to a pass of its unit; elsewhere the program does not know where the trainer is in a
/// lane, and all belong to the first point of forward or of backward, in the order in which `order` goes
/// through units. Errc::invalid_argument names an operation that cannot be planned; `in_passes` none can.
core::Result<void> take_operations(TrainingPlan& plan, const std::vector<core::DeclaredOperation>& operations,
                                   const core::DeclaredOrder& order, bool in_passes);

}  // namespace troupe::actors
