#pragma once

#include <vector>

#include "core/schedule/pipeline_schedule.hpp"

namespace troupe::core {

/// Where a stage keeps activations: the slot of each of its passes, the lowest that is free at the forward. A
/// microbatch of a chunk keeps its slot until its weights' backward has ended, so there are as many slots as
/// ScheduleFacts::peak_activations says. The passes must be those of a schedule that passes check_schedule().
std::vector<int> plan_slots(const std::vector<PipelinePass>& passes);

/// Where a stage keeps what forwards receive: the same, but a forward's slot is taken with the previous
/// forward, so that its rows may arrive while that one runs. At most one slot more.
std::vector<int> plan_input_slots(const std::vector<PipelinePass>& passes);

}  // namespace troupe::core
