#pragma once

#include "actors/planes/step/training_plan.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// Errc::invalid_argument names the parameter that the ranks of a tensor-parallel group cannot share in the
/// way it says: ParameterSpec::global_shape, ParameterSpec::also_sum.
core::Result<void> check_tensor_parts(const TrainingPlan& plan);

}  // namespace troupe::actors
