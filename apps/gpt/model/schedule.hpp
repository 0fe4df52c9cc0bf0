#pragma once

#include "core/ids.hpp"

namespace troupe::apps::gpt {

/// Linear warm-up to the peak, then half a cosine down to `floor` at the last step.
struct Schedule {
  double peak = 3e-3;
  double floor = 3e-4;
  core::Step warmup{50};  ///< the first step at the peak
  core::Step total{500};  ///< steps of the whole run

  /// Step 0 already learns, with 1 / (warmup + 1) of the peak; steps past the end use the floor.
  double learning_rate(core::Step step) const;
};

}  // namespace troupe::apps::gpt
