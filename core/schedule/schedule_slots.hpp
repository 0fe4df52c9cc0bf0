#pragma once

#include <vector>

#include "core/schedule/pipeline_schedule.hpp"

namespace troupe::core {

/// Where a stage keeps activations: the slot of each of its passes, the lowest that is free at the forward. A
/// microbatch of a chunk has its slot until its weights' backward is over, so there are as many slots as
/// ScheduleFacts::peak_activations says. The passes are those of a schedule that passes check_schedule().
std::vector<int> plan_slots(const std::vector<PipelinePass>& passes);

/// Where a stage keeps what forwards receive: the same, but a forward's slot is taken with the forward before
/// it, so that its rows may come while that one runs. One slot more at most.
std::vector<int> plan_input_slots(const std::vector<PipelinePass>& passes);

}  // namespace troupe::core
