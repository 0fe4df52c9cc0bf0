#include "apps/gpt/rank/pipeline_timeline.hpp"

#include <map>
#include <utility>

namespace troupe::apps::gpt {

using core::PassKind;

core::PassDurations mean_durations(const core::ScheduleRun& run) {
  std::map<PassKind, std::pair<double, int>> sums;
  for (const auto& stage : run.stages) {
    for (const auto& [pass, start, end] : stage) {
      auto& [sum, count] = sums[pass.kind];
      sum += end - start;
      count += 1;
    }
  }
  const auto mean = [&](PassKind kind) {
    const auto [sum, count] = sums[kind];
    return count > 0 ? sum / count : 0;
  };
  const double half = mean(PassKind::backward) / 2;
  return {.forward = mean(PassKind::forward),
          .backward_input = mean(PassKind::backward_input) + half,
          .backward_weight = mean(PassKind::backward_weight) + half};
}

}  // namespace troupe::apps::gpt
