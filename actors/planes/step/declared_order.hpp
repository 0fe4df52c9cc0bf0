#pragma once

#include <vector>

#include "core/options/options.hpp"
#include "core/program/trainer_point.hpp"
#include "core/program/unit_order.hpp"
#include "core/result.hpp"

namespace troupe::actors {

struct TrainingPlan;

/// Units that parameters name.
int named_units(const TrainingPlan& plan);
/// Like core::normalised(), by the numbers of units.
core::Result<core::UnitOrder> normalised(const core::DeclaredOrder& order, int units);

/// Part of plan_training(): the order becomes the plan's if units are gathered on demand; otherwise it
/// changes nothing, but is still checked. Parameters outside of units come before all units, and backward
/// reaches them last. Errc::invalid_argument names the unit that is missing, listed twice or unknown, and
/// refuses an order given together with a list of passes.
core::Result<void> take_order(TrainingPlan& plan, const core::DeclaredOrder& order,
                              const std::vector<core::UnitPass>& passes);

}  // namespace troupe::actors
