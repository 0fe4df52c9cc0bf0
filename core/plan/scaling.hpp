#pragma once

#include <cstdint>

#include "core/plan/mesh.hpp"

namespace troupe::core {

/// Where the summed gradient is divided.
enum class GradientScaling : std::uint8_t {
  before_sum,     ///< gradients are scaled, then summed
  in_collective,  ///< the collective averages
  per_token,      ///< not here: the step finally divides by the number of tokens
};

/// How gradients are scaled around the collectives.
struct ScaleFactors {
  double dense = 1;      ///< multiplies dense gradients before the collective
  double expert = 1;     ///< multiplies expert gradients before the collective
  bool average = false;  ///< the collectives average instead of summing

  friend bool operator==(const ScaleFactors&, const ScaleFactors&) = default;
};

/// The factors follow from the full group sizes, also with several optimizer instances. Wherever it is
/// scaled, a gradient ends up multiplied by 1 / dp_cp, except with `per_token`: an expert's gradient sums the
/// tokens of all ranks that send it tokens, so it is divided by dp_cp too, not by edp.
ScaleFactors scale_factors(GradientScaling scaling, const Mesh& mesh);

/// The divisor of fully sharded expert gradients that are averaged over edp.
int fully_sharded_expert_divisor(const Mesh& mesh);

}  // namespace troupe::core
