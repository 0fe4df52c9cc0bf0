// What a data plane is good for when its session has ended.
#include <utility>

#include "actors/planes/step/data_plane_state.hpp"
#include "core/errors.hpp"
#include "core/indices.hpp"

namespace troupe::actors {

core::Result<DataPlane::Rest> DataPlane::retire(std::chrono::nanoseconds deadline) {
  auto& s = *state_;
  if (s.compute) TRY(s.compute->synchronize(deadline));
  TRY(s.accumulate->synchronize(deadline));
  for (const auto& stream : s.communication) TRY(stream->synchronize(deadline));
  TRY(s.update->synchronize(deadline));
  {
    std::lock_guard lock(s.groups_mutex);
    s.groups = {};
  }
  s.options.post = [](messages::Envelope) {};
  s.options.launched = {};
  s.options.tracer = nullptr;
  s.options.collectives = nullptr;
  std::lock_guard lock(s.verdict_mutex);
  Rest rest;
  rest.step = s.verdict_launched;
  rest.is_reduced = s.verdict_launched.value >= 0 && s.reduction_failed != s.verdict_launched;
  rest.decided = s.verdict_arrived;
  rest.words = s.arrived_words;
  return rest;
}

messages::Verdict DataPlane::verdict_of(std::span<const std::int64_t> words) const {
  return state_->verdict_of(words);
}

core::Result<void> DataPlane::end_step(const messages::StepDecided& decided,
                                       std::chrono::nanoseconds deadline) {
  auto& s = *state_;
  for (const auto bucket : s.plan.buckets.indices()) {
    const auto stepped = s.buckets[bucket]->stepped.load();
    if (!s.plan.is_trainable(bucket) || stepped >= decided.step.value) continue;
    if (stepped >= 0 && stepped + 1 < decided.step.value)
      return core::fail(core::Errc::internal, "bucket {} has not made step {} yet", bucket.value,
                        stepped + 1);
    s.carry_out(step_of_shard(decided, bucket));
  }
  return s.update->synchronize(deadline);
}

bool DataPlane::rests_like(const DataPlane& other) const {
  // A group of this epoch knows no other memory than the one that was registered with it.
  return !state_->is_registered && state_->arena.rests_like(other.state_->arena);
}

bool DataPlane::take_memory(DataPlane& retired) {
  if (!rests_like(retired)) return false;
  state_->arena.swap_resting(retired.state_->arena);
  return true;
}

}  // namespace troupe::actors
