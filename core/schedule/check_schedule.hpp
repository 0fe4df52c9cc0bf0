#pragma once

#include <optional>
#include <vector>

#include "core/schedule/pipeline_schedule.hpp"
#include "core/schedule/schedule_run.hpp"

namespace troupe::core {

/// What a schedule that passes its check costs.
struct ScheduleFacts {
  /// The most microbatches of a chunk whose activations a stage keeps at once, per stage: from forward to the
  /// end of backward.
  std::vector<int> peak_activations;
};

/// Whether every stage does every microbatch of every chunk exactly once, each pass after what it needs;
/// whether neighbours receive what is sent in the order in which it is sent; and whether all come to their
/// end when no more than `room` messages fit between two of them (see run_schedule()). The Error names the
/// first stage and pass, or what each stage waits for.
Result<ScheduleFacts> check_schedule(const PipelineSchedule& schedule, int room = 1);

/// The bubble's share of the time in theory, where there are as many microbatches as stages or more; nothing
/// otherwise. With p stages, v chunks, m microbatches, F, B and W the durations of a stage's passes:
/// (p - 1) / (m + p - 1) of GPipe and 1F1B, (p - 1) / (v m + p - 1) of interleaved ones (Narayanan et al.
/// 2021), and of ZB-H1 x / (m (F + B + W) + x) with x = (p - 1) (F + B - W) (Qi et al. 2023), where W is at
/// most F and B. Transfers take no time.
std::optional<double> theoretical_bubble_share(const ScheduleOptions& options,
                                               const PassDurations& durations);

}  // namespace troupe::core
