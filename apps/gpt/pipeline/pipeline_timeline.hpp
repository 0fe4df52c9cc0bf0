#pragma once

#include <optional>

#include "core/schedule/pipeline_schedule.hpp"
#include "core/schedule/schedule_run.hpp"

namespace troupe::apps::gpt {

/// The passes of all stages of a pipeline in a step, in milliseconds from the first one's beginning.
struct PipelineTimeline {
  core::ScheduleOptions schedule;
  core::ScheduleRun run;
  std::optional<double> theory;  ///< the bubble's share, where all passes take as long as the mean of these
};

/// Of the passes of each kind; of whole backwards a half each for inputs and weights.
core::PassDurations mean_durations(const core::ScheduleRun& run);

}  // namespace troupe::apps::gpt
