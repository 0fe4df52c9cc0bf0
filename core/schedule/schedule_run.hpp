#pragma once

#include <string>
#include <vector>

#include "core/schedule/pipeline_schedule.hpp"

namespace troupe::core {

/// How long a pass of one chunk takes, in any unit. A whole backward takes both of its parts.
struct PassDurations {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  double transfer = 0;  ///< from the end of a pass until the next stage has what it made

  double of(PassKind kind) const;
};

struct TimedPass {
  PipelinePass pass;
  double start = 0;
  double end = 0;
};

/// All stages run against each other.
struct ScheduleRun {
  std::vector<std::vector<TimedPass>> stages;
  /// Empty when all passes are done; else what each stage that stands still waits for.
  std::vector<std::string> waits;

  double total() const;
  /// The share of all stages' time, until the last one is done, in which they do nothing.
  double bubble_share() const;
};

/// Each stage does its passes in order: it receives what a pass needs, computes, and sends what it made,
/// before it goes on. There is one channel between two neighbours per direction, of gradients and of
/// activations, in which `room` messages fit: a stage that sends more waits until the other has received one.
/// A stage receives what comes first in its channel; see check_schedule() for schedules of unknown origin.
ScheduleRun run_schedule(const PipelineSchedule& schedule, const PassDurations& durations, int room);

}  // namespace troupe::core
