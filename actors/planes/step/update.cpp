#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "actors/planes/step/data_plane_state.hpp"
#include "actors/planes/step/optimizer_step.hpp"
#include "actors/roles/machine.hpp"
#include "gpu/kernels.hpp"

namespace troupe::actors {

DataPlane::State::State(gpu::Device& on, const TrainingPlan& planned, Options given)
    : device(on),
      plan(planned),
      options(std::move(given)),
      finishing(core::finishing_program(planned.lanes)) {}

int DataPlane::State::slot_of(core::Lane lane) const {
  return is_ordered() ? core::lane_slot(lane, held(), plan.options.lanes) : 0;
}

int DataPlane::State::reduced_slots() const {
  return is_ordered() ? static_cast<int>(core::subtree_roots(held(), plan.options.lanes).size()) : 1;
}

float DataPlane::State::scale() const {
  if (!plan.options.average) return 1.0F;
  return 1.0F / static_cast<float>(plan.options.lanes * plan.options.microbatches);
}

void DataPlane::State::adopt(core::BucketIndex bucket) {
  adopt(bucket, state_range(plan, bucket, rank()));
}

void DataPlane::State::adopt(core::BucketIndex bucket, core::ElementRange part) {
  if (!arena.has_own_master(bucket)) return;
  const auto buffer = plan.buckets[bucket.value].buffer;
  const auto first = static_cast<std::size_t>(part.start - state_range(plan, bucket, rank()).start);
  const gpu::Elements master{arena.master(bucket), core::DType::f32};
  gpu::cast({arena.parameters(buffer, part), plan.buffers[buffer.value].dtype},
            master.part(first, static_cast<std::size_t>(part.size())), update.get());
}

/// A stretch of a shard that one parameter fills: the unit of optimizer settings.
struct DataPlane::State::Segment {
  core::ElementRange in_buffer;
  std::int64_t in_shard = 0;
  core::ParameterIndex parameter{};
};

std::vector<DataPlane::State::Segment> DataPlane::State::segments(core::BucketIndex bucket) const {
  const auto& place = plan.buckets[bucket.value];
  auto range = plan.optimizer_is_sharded() ? plan.shard(bucket, rank()) : place.range;
  std::vector<Segment> found;
  for (auto parameter : place.parameters) {
    const auto& whole = plan.parameters[parameter.value].range;
    core::ElementRange part{std::max(whole.start, range.start), std::min(whole.end, range.end)};
    if (part.size() <= 0) continue;
    found.push_back({part, part.start - range.start, parameter});
  }
  return found;
}

void DataPlane::State::step_segment(core::BucketIndex bucket, const Segment& segment, const StepShard& work,
                                    std::int64_t step) {
  const auto& place = plan.buckets[bucket.value];
  const auto& buffer = plan.buffers[place.buffer.value];
  auto part = [&](gpu::BufferView whole) {
    return whole.bytes == 0
               ? whole
               : whole.subview(static_cast<std::size_t>(segment.in_shard) * sizeof(float),
                               static_cast<std::size_t>(segment.in_buffer.size()) * sizeof(float));
  };
  gpu::ParameterStep parameter;
  parameter.gradient = {arena.gradients(place.buffer, 0, segment.in_buffer), buffer.gradient_dtype};
  parameter.gradient_factor = static_cast<float>(work.clip_factor);
  parameter.master = part(arena.master(bucket));
  if (arena.has_own_master(bucket)) {
    parameter.parameter = {arena.parameters(place.buffer, segment.in_buffer), buffer.dtype};
  }
  std::vector<gpu::BufferView> states;
  for (std::size_t i = 0; i < buffer.states.size(); ++i)
    states.push_back(part(arena.optimizer_state(bucket, i)));
  const auto& spec = plan.specs[segment.parameter.value];
  step_optimizer({plan.group_of(segment.parameter), spec, work.learning_rate, step}, parameter, states,
                 arena.optimizer_scratch(), update.get());
}

void DataPlane::State::step_shard(const StepShard& work) {
  auto& state = *buckets[work.bucket.value];
  const auto& place = plan.buckets[work.bucket.value];
  update->wait(state.exchanged.get());
  if (compute) update->wait(read.get());
  // ParameterShards enqueue at the same time, so that the tasks of two buckets may take turns.
  update->notify([this, &state] {
    state.update_began = device.now();
    updating.begin(state.update_began);
  });
  if (work.commit) {
    auto step = state.optimizer_steps.load() + 1;
    for (const auto& segment : segments(work.bucket)) step_segment(work.bucket, segment, work, step);
    state.optimizer_steps = step;
  }
  // Those above were cleared when they were merged.
  for (int slot = 0; slot < reduced_slots(); ++slot)
    gpu::zero(arena.gradients(place.buffer, slot, place.range), update.get());
  update->record(state.updated.get());
  update->notify([this, &state, work] {
    auto now = device.now();
    updating.end(now);
    trace_span("update", fmt::format("optimizer bucket {}", work.bucket.value), state.update_began, now,
               bucket_flow(work.step, work.bucket));
    say(messages::Role::parameter_shard, work.bucket.value, messages::ShardStepped{work.step, work.bucket});
  });
}

}  // namespace troupe::actors
