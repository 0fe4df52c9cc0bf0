#pragma once

#include <optional>
#include <vector>

#include "core/schedule/pipeline_schedule.hpp"
#include "core/schedule/schedule_run.hpp"

namespace troupe::core {

/// Facts about a schedule that passes its check.
struct ScheduleFacts {
  /// For each stage, the greatest number of microbatches of a chunk whose activations it keeps at the same
  /// time: from forward to the end of backward.
  std::vector<int> peak_activations;
};

/// Checks that every stage processes every microbatch of every chunk exactly once, each pass after its
/// prerequisites; that neighbours receive messages in the order in which they are sent; and that all stages
/// finish when at most `room` messages fit between two of them (see run_schedule()). The Error names the
/// first stage and pass, or what each stage waits for.
Result<ScheduleFacts> check_schedule(const PipelineSchedule& schedule, int room = 1);

/// The bubble's share of the time in theory, if there are at least as many microbatches as stages; otherwise
/// empty. With p stages, v chunks, m microbatches, and F, B and W the durations of a stage's passes: (p - 1)
/// / (m + p - 1) for GPipe and 1F1B, (p - 1) / (v m + p - 1) for interleaved schedules (Narayanan et al.
/// 2021), and for ZB-H1 x / (m (F + B + W) + x) with x = (p - 1) (F + B - W) (Qi et al. 2023), where W is at
/// most F and B. Transfers take no time.
std::optional<double> theoretical_bubble_share(const ScheduleOptions& options,
                                               const PassDurations& durations);

}  // namespace troupe::core
