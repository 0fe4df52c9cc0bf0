#include "actors/planes/step/gradient_sums.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "core/errors.hpp"
#include "core/indices.hpp"
#include "gpu/kernels.hpp"
#include "gpu/order/task_order.hpp"

namespace troupe::actors {

GradientSums::GradientSums(const StepContext& in, const TrainerMarks& marks) : in_(in), marks_(marks) {
  for (const auto bucket : in.tensors.plan.buckets.indices()) measured_.push_back(counted_in_norms(bucket));
}

/// Leaves out parameters that are counted by other ranks that have the same values. Padding is zero.
std::vector<core::ElementRange> GradientSums::counted_in_norms(core::BucketIndex bucket) const {
  const auto& plan = in_.tensors.plan;
  const core::Placements all_axes(plan.inputs.placements.gradients.size(), core::Placement::flat_shard);
  const auto part = in_.tensors.program.held(all_axes, bucket);
  const auto& parameters = plan.buckets[bucket].parameters;
  const auto counts = [&](core::ParameterIndex p) {
    return plan.counts_in_norms(p, in_.tensors.program.rank());
  };
  if (std::all_of(parameters.begin(), parameters.end(), counts)) return {part};
  std::vector<core::ElementRange> counted;
  for (const auto& segment : in_.tensors.segments(bucket, part)) {
    if (counts(segment.parameter)) counted.push_back(segment.in_buffer);
  }
  return counted;
}

void GradientSums::prepare(const PrepareBucket& work) {
  const auto& program = in_.tensors.program;
  const bool has_lane = work.lane.value >= 0;
  const bool is_final = program.reduces_each_round() || work.last;
  if (has_lane) marks_.wait_computed(work.bucket, in_.streams.accumulate.get());
  if (!in_.tensors.is_ordered()) {
    if (program.reduces_each_round() ? has_lane : work.last) scale(work.bucket);
  } else {
    if (has_lane) round_lane(work);
    if (!program.reduces_each_round()) {
      sum_lanes(work);
    } else if (has_lane) {
      add_slots(work.bucket, program.stacks(work.bucket, program.round_of(work.lane)).merge.steps);
    }
  }
  if (is_final) return in_.streams.accumulate->record(in_.streams.buckets[work.bucket].prepared.get());
  in_.streams.accumulate->notify([this, work] {
    in_.say(messages::Role::trainer, 0, messages::LaneMerged{work.step, work.lane, work.bucket});
  });
}

/// By what of the factor is applied before gradients are sent, in `fast` numerics. Collectives that average
/// divide by their members.
void GradientSums::scale(core::BucketIndex bucket) const {
  const auto& plan = in_.tensors.plan;
  float factor = plan.averaging_factor();
  if (plan.options.average_in_collective) {
    const auto& sizes = plan.inputs.domains[plan.domain_of(bucket)].sizes;
    const int members = std::accumulate(sizes.begin(), sizes.end(), 1, std::multiplies<>());
    factor = static_cast<float>(members) / static_cast<float>(plan.options.lanes * plan.options.microbatches);
  }
  if (factor == 1.0F) return;
  const auto sums = in_.tensors.summed(bucket, 0, plan.buckets[bucket].range);
  gpu::scale({sums, in_.tensors.gradient_dtype(bucket)}, factor, in_.streams.accumulate.get());
}

/// A rank's gradients of a lane are a leaf of the tree. A leaf is rounded before anything is added to it,
/// whether it is sent or not, so that leaves are the same on any mesh.
void GradientSums::round_lane(const PrepareBucket& work) const {
  const auto& type = in_.tensors.tensor_class(work.bucket);
  if (!type.has_narrow_wire()) return;
  const auto& program = in_.tensors.program;
  for (int source = 0; source < program.sources(work.bucket); ++source) {
    const int slot = program.source_slot(work.bucket, program.round_of(work.lane), source);
    const auto leaf = in_.tensors.summed(work.bucket, slot, in_.tensors.plan.buckets[work.bucket].range);
    gpu::round_to(type.wire, {leaf, core::DType::f32}, in_.streams.accumulate.get());
  }
}

/// Adds the lane, and those of the other sources, to the rank's partial sums; after the last ones the sums of
/// all sources become one.
void GradientSums::sum_lanes(const PrepareBucket& work) const {
  const auto& program = in_.tensors.program;
  const auto& lanes = program.lanes_of(work.bucket);
  const int round = program.round_of(work.lane);
  const auto& stacks = program.stacks(work.bucket, round);
  for (int source = 0; source < lanes.sources; ++source) {
    const auto block = lanes.source_blocks[static_cast<std::size_t>(source)];
    auto steps = core::merge_after({block.first + round}, block, in_.tensors.plan.options.lanes);
    for (auto& step : steps) {
      step.destination += source * stacks.depth;
      step.source += source * stacks.depth;
    }
    add_slots(work.bucket, steps);
  }
  if (work.last) add_slots(work.bucket, stacks.merge.steps);
}

/// What was added is zero afterwards.
void GradientSums::add_slots(core::BucketIndex bucket, const std::vector<core::TreeStep>& steps) const {
  const auto whole = in_.tensors.plan.buckets[bucket].range;
  const auto stream = in_.streams.accumulate.get();
  for (const auto& step : steps) {
    const auto source = in_.tensors.summed(bucket, step.source, whole);
    gpu::accumulate({source, core::DType::f32},
                    {in_.tensors.summed(bucket, step.destination, whole), core::DType::f32}, stream);
    gpu::zero(source, stream);
  }
}

void GradientSums::round(core::BucketIndex bucket, core::ElementRange range, gpu::StreamView stream) const {
  const gpu::Elements own{in_.tensors.arena.gradients(bucket, 0, range), in_.tensors.gradient_dtype(bucket)};
  gpu::round_to(in_.tensors.tensor_class(bucket).wire, own, stream);
}

void GradientSums::measure(core::BucketIndex bucket, gpu::StreamView stream) const {
  const auto& arena = in_.tensors.arena;
  gpu::zero(arena.squares(bucket), stream);
  for (const auto& counted : measured_[bucket]) {
    gpu::add_squares({arena.gradients(bucket, 0, counted), in_.tensors.gradient_dtype(bucket)},
                     arena.squares(bucket), stream);
  }
}

void GradientSums::clear(const PlannedLaunch& launch, gpu::StreamView stream) const {
  const auto whole = in_.tensors.plan.buckets[*launch.bucket].range;
  for (const int slot : launch.cleared)
    gpu::zero(in_.tensors.arena.full_gradients(*launch.bucket, launch.slot, whole, slot), stream);
}

core::Result<void> GradientSums::clear_all(std::chrono::nanoseconds deadline) const {
  // Without "compute" the trainer writes gradients from the host or on streams of its own, which know none of
  // these events: the memory is zero when this returns.
  const bool waits = marks_.compute() == nullptr && !in_.device.is_host_memory();
  const auto stream = waits ? in_.streams.update.get() : marks_.compute();
  for (const auto memory : in_.tensors.arena.added_to()) {
    if (memory.bytes == 0) continue;
    if (stream) {
      gpu::zero(memory, stream);
    } else {
      gpu::declare(in_.device, "zero", {}, {memory});
      gpu::zero(memory);
    }
  }
  return waits ? stream->synchronize(deadline) : core::Result<void>{};
}

bool GradientSums::are_cleared_by_update(core::BucketIndex bucket) const {
  if (in_.tensors.program.reduces_each_round()) return false;
  const auto slots = in_.tensors.program.summed_slots(bucket, 0);
  return std::find(slots.begin(), slots.end(), 0) != slots.end();
}

/// Slots other than the summed ones were cleared when they were merged, and full gradients when they were
/// reduced. What each round reduces is overwritten, not added to. But a step may be refused because gradients
/// came again after that: then everything is cleared. Memory that buckets share is cleared by the first of
/// them, since none has gradients of the next step before its own shard was stepped.
void GradientSums::clear_after(const StepShard& work) {
  const auto& arena = in_.tensors.arena;
  const auto stream = in_.streams.update.get();
  if (in_.tensors.program.reduces_each_round()) {
    std::lock_guard lock(mutex_);
    if (work.commit || std::exchange(refused_, work.step) == work.step) return;
    for (const auto memory : arena.added_to()) {
      if (memory.bytes > 0) gpu::zero(memory, stream);
    }
    return;
  }
  const auto clear = [&](int slot, core::ElementRange range) {
    if (range.size() > 0) gpu::zero(arena.gradients(work.bucket, slot, range), stream);
  };
  const auto whole = in_.tensors.plan.buckets[work.bucket].range;
  if (!work.commit) {
    for (int slot = 0; slot < arena.slots(work.bucket); ++slot) clear(slot, whole);
    return;
  }
  for (const int slot : in_.tensors.program.summed_slots(work.bucket, 0)) {
    if (slot > 0) clear(slot, whole);
  }
  if (!are_cleared_by_update(work.bucket)) return;
  auto next = whole.start;
  for (const auto& segment : in_.tensors.segments(work.bucket, in_.tensors.optimizer_range(work.bucket))) {
    clear(0, {next, segment.in_buffer.start});
    next = segment.in_buffer.end;
  }
  clear(0, {next, whole.end});
}

}  // namespace troupe::actors
