#pragma once

#include <cstddef>
#include <vector>

#include "core/result.hpp"
#include "core/schedule/pipeline_schedule.hpp"
#include "core/schedule/schedule_run.hpp"

namespace troupe::apps {

struct PipelineBench {
  int stages = 4;
  int microbatches = 8;
  int chunks = 2;  ///< of interleaved schedules
  std::vector<core::ScheduleKind> schedules;
  /// Milliseconds that the passes of a whole stage take; those of a chunk take as much less.
  core::PassDurations milliseconds{.forward = 10, .backward_input = 10, .backward_weight = 10};
  std::size_t message_bytes = std::size_t{1} << 20;  ///< of the rows between two stages
};

struct PipelineTime {
  core::ScheduleOptions schedule;
  double seconds = 0;       ///< from the first pass of any stage to the last one's end
  double bubble_share = 0;  ///< of all stages' time, in which they compute nothing
  double theory = 0;
};

/// Carries out each schedule as a trainer does, over the groups of a session, on ranks of the simulator,
/// whose passes take their time on its clock; so does the network. Errc::invalid_argument for schedules that
/// cannot be, or have no theory.
core::Result<std::vector<PipelineTime>> measure_pipelines(const PipelineBench& bench);

}  // namespace troupe::apps
