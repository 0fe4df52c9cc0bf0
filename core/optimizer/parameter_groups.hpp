#pragma once

#include <span>
#include <vector>

#include "core/optimizer/optimizer.hpp"

namespace troupe::core {

/// A ParameterGroup with all that its user left open.
struct GroupSettings {
  double learning_rate_factor = 1;
  OptimizerSettings optimizer;
};

/// Of a job, at least one. Errc::invalid_argument names a group that cannot be, a parameter of a group that
/// there is not, and one that its group's optimizer does not take.
Result<std::vector<GroupSettings>> parameter_groups(const TrainingOptions& options,
                                                    std::span<const ParameterSpec> parameters);

}  // namespace troupe::core
