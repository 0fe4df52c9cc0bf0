#include <algorithm>

#include "actors/planes/step/data_plane_state.hpp"
#include "actors/planes/step/ranges.hpp"
#include "core/errors.hpp"
#include "gpu/kernels.hpp"

namespace troupe::actors {

void DataPlane::State::prepare(const PrepareBucket& work) {
  auto& state = *buckets[work.bucket];
  const auto whole = plan.buckets[work.bucket].range;
  const bool has_lane = work.lane.value >= 0;
  if (compute && has_lane) accumulate->wait(state.computed.get());
  if (is_ordered() && has_lane) round_lane(work);
  const auto scaled = [&](gpu::BufferView gradients) {
    const float factor = scale_before(work.bucket);
    if (is_ordered() || factor == 1.0F) return;
    gpu::scale({gradients, gradient_dtype(work.bucket)}, factor, accumulate.get());
  };
  if (program.reduces_each_round()) {
    if (has_lane) scaled(arena.full_gradients(work.bucket, program.gradient_slot(work.bucket), whole));
    if (has_lane && is_ordered())
      add_slots(work.bucket, program.stacks(work.bucket, program.round_of(work.lane)).merge.steps);
    accumulate->record(state.prepared.get());
    return;
  }
  if (is_ordered()) {
    sum_lanes(work);
  } else if (work.last) {
    scaled(arena.gradients(work.bucket, 0, whole));
  }
  if (work.last) {
    accumulate->record(state.prepared.get());
    return;
  }
  accumulate->notify([this, work] {
    say(messages::Role::trainer, 0, messages::LaneMerged{work.step, work.lane, work.bucket});
  });
}

/// A rank's gradients of a lane are a leaf of the tree. A leaf is rounded before anything is added to it,
/// whether it is sent or not, so that leaves are the same on any mesh.
void DataPlane::State::round_lane(const PrepareBucket& work) {
  if (!tensor_class(work.bucket).has_narrow_wire()) return;
  const auto whole = plan.buckets[work.bucket].range;
  const int round = program.round_of(work.lane);
  for (int source = 0; source < program.sources(work.bucket); ++source) {
    const int slot = program.source_slot(work.bucket, round, source);
    const auto leaf = program.reduces_each_round()
                          ? arena.full_gradients(work.bucket, program.gradient_slot(work.bucket), whole, slot)
                          : arena.gradients(work.bucket, slot, whole);
    gpu::round_to(tensor_class(work.bucket).wire, {leaf, core::DType::f32}, accumulate.get());
  }
}

/// Adds the lane, and those of the other sources, to the rank's partial sums; after the last ones the sums of
/// all sources become one.
void DataPlane::State::sum_lanes(const PrepareBucket& work) {
  const auto& lanes = program.lanes_of(work.bucket);
  const int round = program.round_of(work.lane);
  const auto& stacks = program.stacks(work.bucket, round);
  for (int source = 0; source < lanes.sources; ++source) {
    const auto block = lanes.source_blocks[static_cast<std::size_t>(source)];
    auto steps = core::merge_after({block.first + round}, block, plan.options.lanes);
    for (auto& step : steps) {
      step.destination += source * stacks.depth;
      step.source += source * stacks.depth;
    }
    add_slots(work.bucket, steps);
  }
  if (work.last) add_slots(work.bucket, stacks.merge.steps);
}

/// What was added is zero afterwards.
void DataPlane::State::add_slots(core::BucketIndex bucket, const std::vector<core::TreeStep>& steps) {
  const auto whole = plan.buckets[bucket].range;
  const auto memory = [&](int slot) {
    return program.reduces_each_round()
               ? arena.full_gradients(bucket, program.gradient_slot(bucket), whole, slot)
               : arena.gradients(bucket, slot, whole);
  };
  for (const auto& step : steps) {
    gpu::accumulate({memory(step.source), core::DType::f32}, {memory(step.destination), core::DType::f32},
                    accumulate.get());
    gpu::zero(memory(step.source), accumulate.get());
  }
}

DataPlane::State::Posted DataPlane::State::round_sums(const core::RecipeStep& step, Job& job) {
  const gpu::Elements own{arena.gradients(job.bucket, 0, job.launch.to), gradient_dtype(job.bucket)};
  gpu::round_to(tensor_class(job.bucket).wire, own, queue(step, job).get());
  return {};
}

/// Ranks that hold the same sums measure one part each, so that everything counts once.
DataPlane::State::Posted DataPlane::State::measure(const core::RecipeStep& step, Job& job) {
  const auto bucket = job.bucket;
  auto& on = queue(step, job);
  gpu::zero(arena.squares(bucket), on.get());
  for (const auto& counted : measured[bucket]) {
    gpu::add_squares({arena.gradients(bucket, 0, counted), gradient_dtype(bucket)}, arena.squares(bucket),
                     on.get());
  }
  return {};
}

/// The next lane adds to zeros.
DataPlane::State::Posted DataPlane::State::clear(const core::RecipeStep& step, Job& job) {
  const auto whole = plan.buckets[job.bucket].range;
  for (const int slot : job.launch.cleared)
    gpu::zero(arena.full_gradients(job.bucket, job.launch.slot, whole, slot), queue(step, job).get());
  return {};
}

DataPlane::State::Posted DataPlane::State::merged(const core::RecipeStep& step, Job& job) {
  const auto lane = program.lane_or_end(job.launch.round);
  const messages::LaneMerged over{job.step, lane, job.bucket};
  queue(step, job)->notify([this, over, operations = job.flight.operations] {
    // After a failure it is unknown whether the memory is free.
    for (const auto& operation : operations) {
      const auto result = operation->result();
      if (result && !*result) return;
    }
    say(messages::Role::trainer, 0, over);
  });
  return {};
}

/// Leaves out parameters that are counted by other ranks that have the same values. Padding is zero.
std::vector<core::ElementRange> DataPlane::State::counted_in_norms(core::BucketIndex bucket,
                                                                   core::ElementRange part) const {
  const auto& parameters = plan.buckets[bucket].parameters;
  const auto counts = [&](core::ParameterIndex p) { return plan.counts_in_norms(p, rank()); };
  if (std::all_of(parameters.begin(), parameters.end(), counts)) return {part};
  std::vector<core::ElementRange> counted;
  for (const auto parameter : parameters) {
    const auto& whole = plan.parameters[parameter].range;
    const core::ElementRange own{std::max(whole.start, part.start), std::min(whole.end, part.end)};
    if (own.size() > 0 && counts(parameter)) counted.push_back(own);
  }
  return counted;
}

}  // namespace troupe::actors
