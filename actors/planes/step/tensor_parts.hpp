#pragma once

#include <optional>

#include "actors/planes/step/training_plan.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// The group that ParameterSpec::also_sum names, if it has several members and the parameter is trained.
std::optional<core::GroupKind> group_of_sum(const core::ParameterSpec& spec, const core::Mesh& mesh);

/// Errc::invalid_argument names the parameter that the ranks of a group cannot share in the way it says:
/// ParameterSpec::global_shape, ParameterSpec::also_sum.
core::Result<void> check_tensor_parts(const TrainingPlan& plan);

}  // namespace troupe::actors
