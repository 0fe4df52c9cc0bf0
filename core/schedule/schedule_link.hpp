#pragma once

#include <optional>

#include "core/schedule/pipeline_schedule.hpp"

namespace troupe::core {

/// A channel between two stages.
struct ScheduleLink {
  int from = 0;
  int to = 0;
  bool is_forward = true;  ///< activations; otherwise gradients

  friend auto operator<=>(const ScheduleLink&, const ScheduleLink&) = default;
};

/// Where a pass sends its result, and where its input comes from: none at the ends of the model, and for
/// weights. Consecutive chunks on one stage need no channel.
std::optional<ScheduleLink> sends(const PipelineSchedule& schedule, int stage, const PipelinePass& pass);
std::optional<ScheduleLink> receives(const PipelineSchedule& schedule, int stage, const PipelinePass& pass);

}  // namespace troupe::core
