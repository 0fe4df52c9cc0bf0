#pragma once

#include <span>
#include <vector>

#include "core/optimizer/optimizer.hpp"

namespace troupe::core {

/// A ParameterGroup with everything filled in that its user left open.
struct GroupSettings {
  double learning_rate_factor = 1;
  OptimizerSettings optimizer;
};

/// The groups of a job, at least one. Errc::invalid_argument names an invalid group, a parameter whose group
/// does not exist, or one that its group's optimizer does not accept.
Result<std::vector<GroupSettings>> parameter_groups(const TrainingOptions& options,
                                                    std::span<const ParameterSpec> parameters);

}  // namespace troupe::core
