#include "apps/gpt/model/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace troupe::apps::gpt {

double Schedule::learning_rate(core::Step step) const {
  if (step < warmup)
    return peak * static_cast<double>(step.value + 1) / static_cast<double>(warmup.value + 1);
  const auto cooling = static_cast<double>(std::max<std::int64_t>(total.value - 1 - warmup.value, 1));
  const double progress = std::min(static_cast<double>(step.value - warmup.value) / cooling, 1.0);
  return floor + (peak - floor) * (1 + std::cos(std::numbers::pi * progress)) / 2;
}

}  // namespace troupe::apps::gpt
