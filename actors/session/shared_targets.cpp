#include "actors/session/shared_targets.hpp"

#include <utility>

#include "actors/engine/state.hpp"

namespace troupe::actors {

namespace {

/// Of a rank, beside the parameters.
std::vector<core::LoadTarget> own_targets(const Job& job, core::Rank rank, const core::Manifest& manifest,
                                          bool optimizer) {
  std::vector<core::LoadTarget> targets;
  const auto state = state_of(job, rank);
  for (std::size_t i = 0; i < state.pieces.size(); ++i) {
    const auto kind = state.pieces[i].kind;
    const bool is_moment = kind == StateKind::first_moment || kind == StateKind::second_moment;
    if (kind == StateKind::parameter || (is_moment && !optimizer)) continue;
    const auto& tensor = state.structure.tensors[state.structure.pieces[i].tensor];
    auto key = tensor.key;
    if (kind == StateKind::master && manifest.find(key) == nullptr)
      key = key.substr(state_key(StateKind::master, job.options.optimizer.kind, "").size());
    if (manifest.find(key) == nullptr) continue;
    targets.push_back({std::move(key), tensor.dtype, tensor.shape, state.structure.pieces[i].box, false});
  }
  return targets;
}

}  // namespace

core::SharedTargets shared_targets(const Job& job, const core::Manifest& manifest, bool optimizer) {
  core::SharedTargets targets;
  for (const auto& spec : job.specs) {
    if (manifest.find(spec.name) == nullptr) continue;
    targets.common.push_back({spec.name, spec.dtype, spec.shape, core::Box::whole(spec.shape), false});
  }
  targets.own.resize(static_cast<std::size_t>(job.world.value));
  if (!job.optimizer_is_sharded()) {
    auto alike = own_targets(job, {0}, manifest, optimizer);
    targets.common.insert(targets.common.end(), std::make_move_iterator(alike.begin()),
                          std::make_move_iterator(alike.end()));
    return targets;
  }
  for (std::int32_t rank = 0; rank < job.world.value; ++rank)
    targets.own[static_cast<std::size_t>(rank)] = own_targets(job, {rank}, manifest, optimizer);
  return targets;
}

}  // namespace troupe::actors
