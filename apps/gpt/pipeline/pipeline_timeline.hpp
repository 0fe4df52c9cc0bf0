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

}  // namespace troupe::apps::gpt
