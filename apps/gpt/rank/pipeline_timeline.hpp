#pragma once

#include <optional>

#include "core/schedule/pipeline_schedule.hpp"
#include "core/schedule/schedule_run.hpp"

namespace troupe::apps::gpt {

/// The passes of all stages of a pipeline in a step, in milliseconds from the beginning of the first.
struct PipelineTimeline {
  core::ScheduleOptions schedule;
  core::ScheduleRun run;
  std::optional<double> theory;  ///< the bubble's share if all passes took as long as their mean
};

/// Mean durations of each kind of pass; a whole backward counts half for inputs and half for weights.
core::PassDurations mean_durations(const core::ScheduleRun& run);

}  // namespace troupe::apps::gpt
