#include <cstring>
#include <utility>

#include "actors/planes/step/data_plane.hpp"
#include "actors/planes/step/data_plane_state.hpp"
#include "core/indices.hpp"
#include "gpu/order/task_order.hpp"

namespace troupe::actors {

// What trainers touch, and on which stream, is their affair. But what they may touch between two calls is
// known: this is what is declared, on the stream that they were given, or else as done by the host.
gpu::TaskOrder* DataPlane::State::order_of_trainer() {
  return compute ? compute->order() : device.order();
}

void DataPlane::mark_acquired(core::BucketIndex bucket, int slot) {
  auto& s = *state_;
  auto* const order = s.order_of_trainer();
  if (order == nullptr) return;
  if (slot < 0) s.buckets[bucket]->is_acquired = true;
  const auto whole = s.plan.buckets[bucket].range;
  const auto memory =
      slot >= 0 ? s.arena.gathered(bucket, slot, whole) : s.arena.parameters(bucket, s.kept(bucket));
  order->task("use of a bucket", {{memory}, {}});
}

void DataPlane::mark_computed(core::ParameterIndex parameter, core::Lane lane) {
  auto& s = *state_;
  const auto bucket = s.plan.parameters[parameter].bucket;
  if (auto* const order = s.order_of_trainer()) {
    gpu::Accesses accesses;
    for (int source = 0; source < s.program.sources(bucket); ++source)
      accesses.writes.push_back(gradient(parameter, lane, source));
    order->task("backward", accesses);
  }
  if (s.compute) s.compute->record(s.buckets[bucket]->computed.get());
}

void DataPlane::set_expert_counts(std::vector<std::int64_t> counts) {
  std::lock_guard lock(state_->verdict_mutex);
  state_->expert_counts = std::move(counts);
}

std::vector<std::int64_t> DataPlane::expert_counts() const {
  std::lock_guard lock(state_->verdict_mutex);
  return state_->all_expert_counts;
}

void DataPlane::mark_read() {
  auto& s = *state_;
  if (auto* const order = s.order_of_trainer()) {
    gpu::Accesses accesses;
    for (const auto bucket : s.plan.buckets.indices()) {
      if (std::exchange(s.buckets[bucket]->is_acquired, false))
        accesses.reads.push_back(s.arena.parameters(bucket, s.kept(bucket)));
    }
    order->task("passes of the step", accesses);
  }
  if (s.compute) s.compute->record(s.read.get());
}

void DataPlane::mark_released(int slot) {
  auto& s = *state_;
  const auto memory = s.arena.slot(slot);
  if (auto* const order = s.order_of_trainer()) order->task("release of a unit", {{}, {memory}});
  // All ones are NaN in every floating type.
  const auto poison = [memory] { std::memset(memory.data, 0xFF, memory.bytes); };
  if (s.poisons && s.compute) s.compute->enqueue("poison", {}, poison);
  if (s.poisons && !s.compute) poison();
  if (s.compute) s.compute->record(s.released[static_cast<std::size_t>(slot)].get());
}

void DataPlane::mark_tensors() {
  if (state_->compute) state_->compute->record(state_->tensors.get());
}

}  // namespace troupe::actors
