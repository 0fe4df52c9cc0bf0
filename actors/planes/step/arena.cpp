#include "actors/planes/step/arena.hpp"

#include <algorithm>

#include "actors/planes/step/optimizer_step.hpp"
#include "actors/planes/step/verdict.hpp"
#include "core/errors.hpp"
#include "core/indices.hpp"

namespace troupe::actors {

namespace {

gpu::BufferView elements_of(const gpu::Buffer& buffer, core::ElementRange range, std::size_t element_bytes) {
  return buffer.view().subview(static_cast<std::size_t>(range.start) * element_bytes,
                               static_cast<std::size_t>(range.size()) * element_bytes);
}

}  // namespace

int gradient_slots(const TrainingPlan& plan, core::Rank rank) {
  if (plan.options.numerics == core::Numerics::fast) return 1;
  const auto& held = plan.lanes[static_cast<std::size_t>(rank.value)];
  int slots = 1;
  for (int lane = held.first; lane < held.end(); ++lane) {
    slots = std::max(slots, core::lane_slot({lane}, held, plan.options.lanes) + 1);
  }
  return slots;
}

bool exchange_is_packed(const TrainingPlan& plan, core::Rank rank) {
  const auto& held = plan.lanes[static_cast<std::size_t>(rank.value)];
  return core::subtree_roots(held, plan.options.lanes).size() > 1 || plan.options.optimizer_instances > 1;
}

core::Result<gpu::Buffer> Arena::take(gpu::Device& device, std::size_t bytes) {
  bytes_ += bytes;
  return device.allocate(bytes);
}

core::Result<gpu::Buffer> Arena::take_carried(gpu::Device& device, std::size_t bytes) {
  if (collectives_ == nullptr) return take(device, bytes);
  auto buffer = TRY(collectives_->allocate(device, bytes));
  bytes_ += bytes;
  carried_.push_back(buffer.view());
  return buffer;
}

core::Result<Arena> Arena::create(gpu::Device& device, const TrainingPlan& plan, core::Rank rank,
                                  gpu::CollectiveBackend* collectives) {
  Arena arena;
  arena.collectives_ = collectives;
  arena.plan_ = &plan;
  arena.slots_ = gradient_slots(plan, rank);
  for (const auto& buffer : plan.buffers) {
    auto bytes = static_cast<std::size_t>(buffer.layout.elements) * core::size_of(buffer.dtype);
    arena.parameters_.push_back(TRY(arena.take_carried(device, bytes)));
  }
  for (int slot = 0; slot < arena.slots_; ++slot) {
    auto& buffers = arena.gradients_.emplace_back();
    for (const auto& buffer : plan.buffers) {
      auto bytes = static_cast<std::size_t>(buffer.layout.elements) * core::size_of(buffer.gradient_dtype);
      // The slots above the first are merged into it, or packed, before they go anywhere.
      buffers.push_back(TRY(slot == 0 ? arena.take_carried(device, bytes) : arena.take(device, bytes)));
    }
  }
  TRY(arena.take_optimizer(device, plan, rank));
  TRY(arena.take_scratch(device, plan, rank));
  arena.squares_ = TRY(arena.take(device, plan.buckets.size() * sizeof(core::ExactSquareSum)));
  auto verdict_bytes = verdict_words(plan.options.lanes, plan.world) * sizeof(std::int64_t);
  arena.verdict_ = TRY(arena.take(device, verdict_bytes));
  arena.own_verdict_ = TRY(device.allocate_staging(verdict_bytes));
  arena.common_verdict_ = TRY(device.allocate_staging(verdict_bytes));
  return arena;
}

core::Result<void> Arena::take_optimizer(gpu::Device& device, const TrainingPlan& plan, core::Rank rank) {
  optimizer_scratch_ = TRY(take(device, optimizer_scratch_bytes(plan)));
  for (const auto bucket : core::indices<core::BucketIndex>(plan.buckets.size())) {
    const auto& place = plan.buckets[bucket.value];
    auto range = plan.optimizer_is_sharded() ? plan.shard(bucket, rank) : place.range;
    auto bytes = static_cast<std::size_t>(range.size()) * sizeof(float);
    OptimizerState state;
    for (std::size_t i = 0; i < plan.buffers[place.buffer.value].states.size(); ++i)
      state.states.push_back(TRY(take(device, bytes)));
    if (plan.buffers[place.buffer.value].dtype == core::DType::f32) {
      state.master_in_parameters = parameters(place.buffer, range);
    } else {
      state.master = TRY(take(device, bytes));
    }
    optimizer_.push_back(std::move(state));
  }
  return {};
}

core::Result<void> Arena::take_scratch(gpu::Device& device, const TrainingPlan& plan, core::Rank rank) {
  if (plan.options.numerics == core::Numerics::fast || plan.world.value == 1) return {};
  std::size_t roots = 0;
  for (const auto& held : plan.lanes) roots += core::subtree_roots(held, plan.options.lanes).size();
  auto own_roots =
      core::subtree_roots(plan.lanes[static_cast<std::size_t>(rank.value)], plan.options.lanes).size();
  std::size_t incoming = 0;
  std::size_t outgoing = 0;
  for (const auto bucket : core::indices<core::BucketIndex>(plan.buckets.size())) {
    auto size = static_cast<std::size_t>(plan.buckets[bucket.value].range.size());
    auto shard = static_cast<std::size_t>(plan.shard(bucket, rank).size());
    incoming = std::max(incoming, roots * shard);
    outgoing =
        std::max(outgoing, own_roots * size * static_cast<std::size_t>(plan.options.optimizer_instances));
  }
  for (auto& buffer : incoming_) buffer = TRY(take_carried(device, incoming * sizeof(float)));
  if (!exchange_is_packed(plan, rank)) return {};
  for (auto& buffer : outgoing_) buffer = TRY(take_carried(device, outgoing * sizeof(float)));
  return {};
}

gpu::BufferView Arena::parameters(core::BufferIndex buffer, core::ElementRange range) const {
  return elements_of(parameters_[buffer.value], range, core::size_of(plan_->buffers[buffer.value].dtype));
}

gpu::BufferView Arena::gradients(core::BufferIndex buffer, int slot, core::ElementRange range) const {
  CHECK(slot >= 0 && slot < slots_, "a gradient slot exists");
  return elements_of(gradients_[static_cast<std::size_t>(slot)][buffer.value], range,
                     core::size_of(plan_->buffers[buffer.value].gradient_dtype));
}

gpu::BufferView Arena::master(core::BucketIndex bucket) const {
  const auto& state = optimizer_[bucket.value];
  return state.master.bytes() > 0 ? state.master.view() : state.master_in_parameters;
}

}  // namespace troupe::actors
