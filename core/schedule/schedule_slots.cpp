#include "core/schedule/schedule_slots.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace troupe::core {

std::vector<int> plan_slots(const std::vector<PipelinePass>& passes) {
  std::vector<int> slots;
  std::vector<bool> taken;
  std::map<std::pair<int, int>, int> slot_of;  // by chunk and microbatch
  for (const PipelinePass& pass : passes) {
    const std::pair microbatch{pass.chunk, pass.microbatch};
    if (pass.kind == PassKind::forward) {
      const auto free = std::find(taken.begin(), taken.end(), false);
      slot_of[microbatch] = static_cast<int>(free - taken.begin());
      if (free == taken.end()) {
        taken.push_back(true);
      } else {
        *free = true;
      }
    }
    const int slot = slot_of[microbatch];
    slots.push_back(slot);
    if (pass.kind == PassKind::backward || pass.kind == PassKind::backward_weight)
      taken[static_cast<std::size_t>(slot)] = false;
  }
  return slots;
}

}  // namespace troupe::core
