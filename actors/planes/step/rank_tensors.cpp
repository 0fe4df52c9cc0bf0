#include "actors/planes/step/rank_tensors.hpp"

#include "actors/planes/step/ranges.hpp"
#include "core/errors.hpp"

namespace troupe::actors {

RankTensors::Part RankTensors::kept(core::BucketIndex bucket) const {
  const auto held = program.held(plan.placements_of(bucket).parameters, bucket);
  return {held, arena.parameters(bucket, held)};
}

std::vector<RankTensors::Segment> RankTensors::segments(core::BucketIndex bucket,
                                                        core::ElementRange range) const {
  std::vector<Segment> found;
  for (const auto parameter : plan.buckets[bucket].parameters) {
    const auto part = overlap(plan.parameters[parameter].range, range);
    if (part.size() > 0) found.push_back({part, part.start - range.start, parameter});
  }
  return found;
}

gpu::BufferView RankTensors::summed(core::BucketIndex bucket, int slot, core::ElementRange range) const {
  if (!program.reduces_each_round()) return arena.gradients(bucket, slot, range);
  return arena.full_gradients(bucket, program.gradient_slot(bucket), range, slot);
}

gpu::BufferView RankTensors::parameter(core::ParameterIndex parameter, int slot) const {
  const auto& place = plan.parameters[parameter];
  if (slot >= 0) return arena.gathered(place.bucket, slot, place.range);
  return arena.parameters(place.bucket, place.range);
}

gpu::BufferView RankTensors::gradient(core::ParameterIndex parameter, core::Lane lane, int source) const {
  const auto& place = plan.parameters[parameter];
  CHECK(source >= 0 && source < program.sources(place.bucket), "the source exists");
  // In `fast` numerics they may be summed in any order.
  const int slot = is_ordered() ? program.source_slot(place.bucket, program.round_of(lane), source) : 0;
  return summed(place.bucket, slot, place.range);
}

RankTensors::Part RankTensors::resting_parameter(core::ParameterIndex parameter) const {
  const auto& place = plan.parameters[parameter];
  const auto range =
      overlap(place.range, program.held(plan.placements_of(place.bucket).parameters, place.bucket));
  if (range.size() == 0) return {};
  return {moved(range, -place.range.start), arena.parameters(place.bucket, range)};
}

RankTensors::Part RankTensors::reduced_gradient(core::ParameterIndex parameter) const {
  const auto& place = plan.parameters[parameter];
  const auto range =
      overlap(place.range, program.held(plan.placements_of(place.bucket).gradients, place.bucket));
  if (range.size() == 0) return {};
  return {moved(range, -place.range.start), arena.gradients(place.bucket, 0, range)};
}

gpu::BufferView RankTensors::state(StateKind kind, core::BucketIndex bucket) const {
  switch (kind) {
    case StateKind::parameter:
      return arena.parameters(bucket, optimizer_range(bucket));
    case StateKind::master:
      return arena.master(bucket);
    case StateKind::first_state:
      return arena.optimizer_state(bucket, 0);
    case StateKind::second_state:
      return arena.optimizer_state(bucket, 1);
    case StateKind::trainer:
      break;
  }
  return {};
}

RankTensors::Part RankTensors::state(StateKind kind, core::ParameterIndex parameter) const {
  const auto& place = plan.parameters[parameter];
  const auto held = optimizer_range(place.bucket);
  const auto range = overlap(place.range, held);
  const auto whole = state(kind, place.bucket);
  if (range.size() == 0 || whole.bytes == 0) return {};
  const auto width =
      kind == StateKind::parameter ? core::size_of(plan.specs[parameter].dtype) : sizeof(float);
  return {moved(range, -place.range.start),
          whole.subview(elements({held.start, range.start}) * width, elements(range) * width)};
}

std::vector<gpu::BufferView> RankTensors::pieces_of(const RankState& state,
                                                    std::span<const TrainerTensor> own) const {
  std::vector<gpu::BufferView> memory;
  memory.reserve(state.pieces.size());
  for (std::size_t i = 0; i < state.pieces.size(); ++i) {
    const auto& piece = state.pieces[i];
    const auto& stored = state.structure.pieces[i];
    const auto width = core::size_of(state.structure.tensors[stored.tensor].dtype);
    const auto whole =
        piece.kind == StateKind::trainer ? own[piece.tensor].memory : this->state(piece.kind, piece.bucket);
    memory.push_back(whole.subview(static_cast<std::size_t>(piece.first) * width,
                                   static_cast<std::size_t>(stored.box.elements()) * width));
  }
  return memory;
}

std::vector<std::span<std::byte>> spans_of(std::span<const gpu::BufferView> views) {
  std::vector<std::span<std::byte>> spans;
  spans.reserve(views.size());
  for (const auto view : views) spans.emplace_back(view.data, view.bytes);
  return spans;
}

}  // namespace troupe::actors
