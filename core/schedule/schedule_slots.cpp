#include "core/schedule/schedule_slots.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace troupe::core {

namespace {

using Microbatch = std::pair<int, int>;  // microbatch and chunk

Microbatch microbatch_of(const PipelinePass& pass) {
  return {pass.microbatch, pass.chunk};
}

/// Slots taken at a forward, by it and by the next `ahead` forwards.
std::vector<int> plan_ahead(const std::vector<PipelinePass>& passes, std::size_t ahead) {
  std::vector<Microbatch> forwards;
  for (const PipelinePass& pass : passes) {
    if (pass.kind == PassKind::forward) forwards.push_back(microbatch_of(pass));
  }
  std::vector<int> slots;
  std::vector<bool> taken;
  std::map<Microbatch, int> slot_of;
  std::size_t done = 0;  // forwards so far
  for (const PipelinePass& pass : passes) {
    if (pass.kind == PassKind::forward) {
      done += 1;
      for (std::size_t next = slot_of.size(); next < std::min(done + ahead, forwards.size()); ++next) {
        const auto free = std::find(taken.begin(), taken.end(), false) - taken.begin();
        taken.resize(std::max(taken.size(), static_cast<std::size_t>(free) + 1));
        taken[static_cast<std::size_t>(free)] = true;
        slot_of[forwards[next]] = static_cast<int>(free);
      }
    }
    slots.push_back(slot_of.at(microbatch_of(pass)));
    if (pass.kind == PassKind::backward || pass.kind == PassKind::backward_weight)
      taken[static_cast<std::size_t>(slots.back())] = false;
  }
  return slots;
}

}  // namespace

std::vector<int> plan_slots(const std::vector<PipelinePass>& passes) {
  return plan_ahead(passes, 0);
}

std::vector<int> plan_input_slots(const std::vector<PipelinePass>& passes) {
  return plan_ahead(passes, 1);
}

}  // namespace troupe::core
