#include "core/plan/scaling.hpp"

namespace troupe::core {

ScaleFactors scale_factors(GradientScaling scaling, const Mesh& mesh) {
  const double dp_cp = mesh.group_size(GroupKind::dp_cp);
  switch (scaling) {
    case GradientScaling::before_sum:
      return {.dense = 1 / dp_cp, .expert = 1 / dp_cp, .average = false};
    case GradientScaling::in_collective:
      return {.dense = 1, .expert = mesh.edp() / dp_cp, .average = true};
    case GradientScaling::per_token:
      break;
  }
  return {};
}

int fully_sharded_expert_divisor(const Mesh& mesh) {
  return mesh.sizes().ep;
}

}  // namespace troupe::core
