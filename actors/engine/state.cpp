#include "actors/engine/state.hpp"

#include <algorithm>

namespace troupe::actors {

std::string state_key(StateKind kind, OptimizerKind optimizer, const std::string& parameter) {
  switch (kind) {
    case StateKind::parameter:
      return parameter;
    case StateKind::master:
      return "optimizer.state.fp32_param." + parameter;
    case StateKind::first_moment:
      return (optimizer == OptimizerKind::sgd ? "optimizer.state.momentum_buffer."
                                              : "optimizer.state.exp_avg.") +
             parameter;
    case StateKind::second_moment:
      return "optimizer.state.exp_avg_sq." + parameter;
  }
  return parameter;
}

std::vector<StateKind> state_kinds(const Job& job, std::uint32_t buffer) {
  std::vector<StateKind> kinds{StateKind::parameter};
  if (job.buffers[buffer].dtype != core::DType::f32) kinds.push_back(StateKind::master);
  const auto& optimizer = job.options.optimizer;
  if (optimizer.kind != OptimizerKind::sgd || optimizer.momentum != 0)
    kinds.push_back(StateKind::first_moment);
  if (optimizer.kind != OptimizerKind::sgd) kinds.push_back(StateKind::second_moment);
  return kinds;
}

core::ElementRange state_range(const Job& job, std::uint32_t bucket, core::Rank rank) {
  return job.optimizer_is_sharded() ? job.shard(bucket, rank) : job.buckets[bucket].range;
}

std::vector<std::uint32_t> RankState::buckets() const {
  std::vector<std::uint32_t> found;
  for (const auto& piece : pieces) found.push_back(piece.bucket);
  return found;
}

RankState state_of(const Job& job, core::Rank rank) {
  RankState state;
  for (auto bucket = static_cast<std::uint32_t>(job.buckets.size()); bucket-- > 0;) {
    const auto& place = job.buckets[bucket];
    const auto held = state_range(job, bucket, rank);
    for (auto parameter : place.parameters) {
      const auto& whole = job.parameters[parameter].range;
      const core::ElementRange part{std::max(whole.start, held.start), std::min(whole.end, held.end)};
      if (part.size() <= 0) continue;
      const auto& spec = job.specs[parameter];
      const auto boxes = core::boxes_of_range(spec.shape, {part.start - whole.start, part.end - whole.start});
      for (auto kind : state_kinds(job, place.buffer)) {
        const auto tensor = static_cast<std::uint32_t>(state.structure.tensors.size());
        const auto dtype = kind == StateKind::parameter ? spec.dtype : core::DType::f32;
        state.structure.tensors.push_back(
            {state_key(kind, job.options.optimizer.kind, spec.name), dtype, spec.shape});
        auto first = part.start - held.start;
        for (const auto& box : boxes) {
          state.structure.pieces.push_back({tensor, box});
          state.pieces.push_back({kind, bucket, first});
          first += box.elements();
        }
      }
    }
  }
  return state;
}

}  // namespace troupe::actors
