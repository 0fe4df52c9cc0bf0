#pragma once

#include "actors/planes/step/training_plan.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// Errc::invalid_argument names the parameter that ranks of a tensor-parallel group cannot share as it says:
/// ParameterSpec::global_shape, ParameterSpec::also_sum.
core::Result<void> check_tensor_parts(const TrainingPlan& plan);

}  // namespace troupe::actors
