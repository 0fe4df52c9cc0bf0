#include "actors/planes/step/arena.hpp"

#include <algorithm>

#include "actors/planes/step/verdict.hpp"
#include "core/check.hpp"

namespace troupe::actors {

namespace {

gpu::BufferView elements_of(const gpu::Buffer& buffer, core::ElementRange range, std::size_t element_bytes) {
  return buffer.view().subview(static_cast<std::size_t>(range.start) * element_bytes,
                               static_cast<std::size_t>(range.size()) * element_bytes);
}

}  // namespace

int gradient_slots(const Job& job, core::Rank rank) {
  if (job.options.numerics == core::Numerics::fast) return 1;
  const auto& held = job.lanes[static_cast<std::size_t>(rank.value)];
  int slots = 1;
  for (int lane = held.first; lane < held.end(); ++lane) {
    slots = std::max(slots, core::lane_slot({lane}, held, job.options.lanes) + 1);
  }
  return slots;
}

bool exchange_is_packed(const Job& job, core::Rank rank) {
  const auto& held = job.lanes[static_cast<std::size_t>(rank.value)];
  return core::subtree_roots(held, job.options.lanes).size() > 1 || job.options.optimizer_instances > 1;
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

core::Result<Arena> Arena::create(gpu::Device& device, const Job& job, core::Rank rank,
                                  gpu::CollectiveBackend* collectives) {
  Arena arena;
  arena.collectives_ = collectives;
  arena.job_ = &job;
  arena.slots_ = gradient_slots(job, rank);
  for (const auto& buffer : job.buffers) {
    auto bytes = static_cast<std::size_t>(buffer.layout.elements) * core::size_of(buffer.dtype);
    arena.parameters_.push_back(TRY(arena.take_carried(device, bytes)));
  }
  for (int slot = 0; slot < arena.slots_; ++slot) {
    auto& buffers = arena.gradients_.emplace_back();
    for (const auto& buffer : job.buffers) {
      auto bytes = static_cast<std::size_t>(buffer.layout.elements) * core::size_of(buffer.gradient_dtype);
      // The slots above the first are merged into it, or packed, before they go anywhere.
      buffers.push_back(TRY(slot == 0 ? arena.take_carried(device, bytes) : arena.take(device, bytes)));
    }
  }
  TRY(arena.take_optimizer(device, job, rank));
  TRY(arena.take_scratch(device, job, rank));
  arena.squares_ = TRY(arena.take(device, job.buckets.size() * sizeof(core::ExactSquareSum)));
  auto verdict_bytes = verdict_words(job.options.lanes, job.world) * sizeof(std::int64_t);
  arena.verdict_ = TRY(arena.take(device, verdict_bytes));
  arena.own_verdict_ = TRY(device.allocate_staging(verdict_bytes));
  arena.common_verdict_ = TRY(device.allocate_staging(verdict_bytes));
  return arena;
}

core::Result<void> Arena::take_optimizer(gpu::Device& device, const Job& job, core::Rank rank) {
  const auto& options = job.options.optimizer;
  bool first = options.kind != OptimizerKind::sgd || options.momentum != 0;
  bool second = options.kind != OptimizerKind::sgd;
  for (std::uint32_t index = 0; index < job.buckets.size(); ++index) {
    auto buffer = job.buckets[index].buffer;
    auto range = job.optimizer_is_sharded() ? job.shard(index, rank) : job.buckets[index].range;
    auto bytes = static_cast<std::size_t>(range.size()) * sizeof(float);
    OptimizerState state;
    if (first) state.first_moment = TRY(take(device, bytes));
    if (second) state.second_moment = TRY(take(device, bytes));
    if (job.buffers[buffer].dtype == core::DType::f32) {
      state.master_in_parameters = parameters(buffer, range);
    } else {
      state.master = TRY(take(device, bytes));
    }
    optimizer_.push_back(std::move(state));
  }
  return {};
}

core::Result<void> Arena::take_scratch(gpu::Device& device, const Job& job, core::Rank rank) {
  if (job.options.numerics == core::Numerics::fast || job.world.value == 1) return {};
  std::size_t roots = 0;
  for (const auto& held : job.lanes) roots += core::subtree_roots(held, job.options.lanes).size();
  auto own_roots =
      core::subtree_roots(job.lanes[static_cast<std::size_t>(rank.value)], job.options.lanes).size();
  std::size_t incoming = 0;
  std::size_t outgoing = 0;
  for (std::uint32_t bucket = 0; bucket < job.buckets.size(); ++bucket) {
    auto size = static_cast<std::size_t>(job.buckets[bucket].range.size());
    auto shard = static_cast<std::size_t>(job.shard(bucket, rank).size());
    incoming = std::max(incoming, roots * shard);
    outgoing =
        std::max(outgoing, own_roots * size * static_cast<std::size_t>(job.options.optimizer_instances));
  }
  for (auto& buffer : incoming_) buffer = TRY(take_carried(device, incoming * sizeof(float)));
  if (!exchange_is_packed(job, rank)) return {};
  for (auto& buffer : outgoing_) buffer = TRY(take_carried(device, outgoing * sizeof(float)));
  return {};
}

gpu::BufferView Arena::parameters(std::uint32_t buffer, core::ElementRange range) const {
  return elements_of(parameters_[buffer], range, core::size_of(job_->buffers[buffer].dtype));
}

gpu::BufferView Arena::gradients(std::uint32_t buffer, int slot, core::ElementRange range) const {
  CHECK(slot >= 0 && slot < slots_, "a gradient slot exists");
  return elements_of(gradients_[static_cast<std::size_t>(slot)][buffer], range,
                     core::size_of(job_->buffers[buffer].gradient_dtype));
}

gpu::BufferView Arena::master(std::uint32_t bucket) const {
  const auto& state = optimizer_[bucket];
  return state.master.bytes() > 0 ? state.master.view() : state.master_in_parameters;
}

gpu::BufferView Arena::first_moment(std::uint32_t bucket) const {
  return optimizer_[bucket].first_moment.view();
}

gpu::BufferView Arena::second_moment(std::uint32_t bucket) const {
  return optimizer_[bucket].second_moment.view();
}

}  // namespace troupe::actors
