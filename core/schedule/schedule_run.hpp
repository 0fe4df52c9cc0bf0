#pragma once

#include <string>
#include <vector>

#include "core/schedule/pipeline_schedule.hpp"

namespace troupe::core {

/// Duration of a pass of one chunk, in any unit. A full backward takes the sum of its two parts.
struct PassDurations {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  double transfer = 0;  ///< from the end of a pass until the next stage has its result

  double of(PassKind kind) const;
};

struct TimedPass {
  PipelinePass pass;
  double start = 0;
  double end = 0;
};

/// A run of all stages together.
struct ScheduleRun {
  std::vector<std::vector<TimedPass>> stages;
  /// Empty if all passes completed; otherwise what each blocked stage waits for.
  std::vector<std::string> waits;

  double total() const;
  /// The idle share of all stages' time, until the last one finishes.
  double bubble_share() const;
};

/// Each stage does its passes in order: it receives what a pass needs, computes, and sends the result, before
/// it continues. Two neighbours have one channel per direction, for gradients and for activations, which
/// holds `room` messages: a stage that sends more waits until the other has received one. A stage receives
/// the first message in its channel; see check_schedule() for schedules of unknown origin.
ScheduleRun run_schedule(const PipelineSchedule& schedule, const PassDurations& durations, int room);

}  // namespace troupe::core
