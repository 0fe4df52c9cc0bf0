#pragma once

#include <vector>

#include "actors/planes/step/training_plan.hpp"

namespace troupe::actors {

/// Part of plan_training(): the list becomes the plan's if something is gathered or reduced in every round;
/// otherwise the order of passes changes nothing. Errc::invalid_argument names a parameter that is in no
/// unit.
core::Result<void> take_passes(TrainingPlan& plan, std::vector<core::UnitPass> passes);

}  // namespace troupe::actors
