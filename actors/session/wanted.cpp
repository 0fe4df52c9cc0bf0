#include "actors/session/wanted.hpp"

#include <iterator>
#include <optional>
#include <utility>

#include "core/errors.hpp"
#include "core/indices.hpp"

namespace troupe::actors {
namespace {

/// The targets of a parameter that every rank keeps whole, in the order of their parts in memory.
std::vector<core::LoadTarget> targets_of_parameter(const core::Manifest& manifest, const TrainingPlan& plan,
                                                   core::ParameterIndex parameter) {
  const auto& spec = plan.specs[parameter];
  const auto parts = spec.stored_parts();
  CHECK(parts.has_value(), "what can be stored was checked before");
  std::vector<core::LoadTarget> targets;
  for (const auto& part : *parts) {
    targets.push_back({key_in(manifest, plan, parameter, StateKind::parameter, part.key), spec.dtype,
                       part.global_shape, part.box(), spec.allow_shape_mismatch});
  }
  return targets;
}

/// The target of a piece of a rank's state that is not read with the parameters; empty for others.
std::optional<core::LoadTarget> target_of_piece(const core::Manifest& manifest, const TrainingPlan& plan,
                                                const RankState& state, std::size_t index,
                                                std::span<const TrainerTensor> tensors, bool optimizer) {
  const auto& piece = state.pieces[index];
  const bool is_read_whole = piece.kind == StateKind::parameter && !plan.has_sharded_parameters(piece.bucket);
  if (is_read_whole || (is_optimizer_state(piece.kind) && !optimizer)) return {};
  const auto& stored = state.structure.pieces[index];
  const auto& tensor = state.structure.tensors[stored.tensor];
  const bool any_shape = piece.kind == StateKind::trainer
                             ? tensors[piece.tensor].tensor.allow_shape_mismatch
                             : plan.specs[core::ParameterIndex{piece.tensor}].allow_shape_mismatch;
  return core::LoadTarget{key_of(manifest, plan, state, index), tensor.dtype, tensor.shape, stored.box,
                          any_shape};
}

/// The rank's state in the checkpoint, besides the parameters.
std::vector<core::LoadTarget> own_targets(const TrainingPlan& plan, core::Rank rank,
                                          const core::Manifest& manifest, bool optimizer) {
  std::vector<core::LoadTarget> targets;
  const auto state = state_of(plan, rank);
  for (std::size_t i = 0; i < state.pieces.size(); ++i) {
    auto target = target_of_piece(manifest, plan, state, i, {}, optimizer);
    if (target && manifest.find(target->key) != nullptr) targets.push_back(*std::move(target));
  }
  return targets;
}

}  // namespace

core::KeySet Wanted::keys() const {
  core::KeySet keys;
  for (const auto& target : targets) keys.insert(target.key);
  return keys;
}

void Wanted::drop(const core::KeySet& keys) {
  Wanted kept;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (keys.contains(targets[i].key)) continue;
    kept.targets.push_back(std::move(targets[i]));
    kept.memory.push_back(memory[i]);
  }
  *this = std::move(kept);
}

std::string key_in(const core::Manifest& manifest, const TrainingPlan& plan, core::ParameterIndex parameter,
                   StateKind kind, const std::string& part) {
  const auto& buffer = plan.buffers[plan.parameters[parameter].buffer];
  const auto master = state_key(StateKind::master, buffer, part);
  const bool is_value = kind == StateKind::parameter || kind == StateKind::master;
  if (!is_value) return state_key(kind, buffer, part);
  const bool is_fp32 = kind == StateKind::master || plan.specs[parameter].dtype == core::DType::f32;
  return is_fp32 && manifest.find(master) != nullptr ? master : part;
}

std::string key_of(const core::Manifest& manifest, const TrainingPlan& plan, const RankState& state,
                   std::size_t index) {
  const auto& piece = state.pieces[index];
  const auto& key = state.structure.tensors[state.structure.pieces[index].tensor].key;
  if (piece.kind == StateKind::trainer) return key;
  const core::ParameterIndex parameter{piece.tensor};
  const auto& buffer = plan.buffers[plan.parameters[parameter].buffer];
  const auto prefix = state_key(piece.kind, buffer, "");
  return key_in(manifest, plan, parameter, piece.kind, key.substr(prefix.size()));
}

core::KeySet requested_keys(const core::Manifest& manifest, const TrainingPlan& plan, bool optimizer) {
  core::KeySet keys;
  for (const auto p : plan.specs.indices()) {
    const auto parts = plan.specs[p].stored_parts();
    CHECK(parts.has_value(), "what can be stored was checked before");
    for (auto kind : state_kinds(plan.buffers[plan.parameters[p].buffer])) {
      if (is_optimizer_state(kind) && !optimizer) continue;
      for (const auto& part : *parts) keys.insert(key_in(manifest, plan, p, kind, part.key));
    }
  }
  return keys;
}

core::SharedTargets shared_targets(const TrainingPlan& plan, const core::Manifest& manifest, bool optimizer) {
  core::SharedTargets targets;
  for (const auto p : plan.specs.indices()) {
    if (plan.has_sharded_parameters(plan.parameters[p].bucket)) continue;
    for (auto& target : targets_of_parameter(manifest, plan, p)) {
      if (manifest.find(target.key) != nullptr) targets.common.push_back(std::move(target));
    }
  }
  targets.own.resize(static_cast<std::size_t>(plan.world.value));
  if (plan.optimizer_is_replicated()) {
    auto alike = own_targets(plan, {0}, manifest, optimizer);
    targets.common.insert(targets.common.end(), std::make_move_iterator(alike.begin()),
                          std::make_move_iterator(alike.end()));
    return targets;
  }
  for (std::int32_t rank = 0; rank < plan.world.value; ++rank)
    targets.own[static_cast<std::size_t>(rank)] = own_targets(plan, {rank}, manifest, optimizer);
  return targets;
}

Wanted wanted_of(const core::Manifest& manifest, const TrainingPlan& plan, const RankState& state,
                 std::span<const gpu::BufferView> memory, const RankTensors& own,
                 std::span<const TrainerTensor> tensors, bool optimizer) {
  Wanted wanted;
  for (const auto p : plan.specs.indices()) {
    if (plan.has_sharded_parameters(plan.parameters[p].bucket)) continue;
    auto rest = own.parameter(p);
    for (auto& target : targets_of_parameter(manifest, plan, p)) {
      const auto bytes = static_cast<std::size_t>(target.box.elements()) * core::size_of(target.dtype);
      wanted.add(std::move(target), rest.subview(0, bytes));
      rest = rest.subview(bytes, rest.bytes - bytes);
    }
  }
  for (std::size_t i = 0; i < state.pieces.size(); ++i) {
    if (auto target = target_of_piece(manifest, plan, state, i, tensors, optimizer))
      wanted.add(*std::move(target), memory[i]);
  }
  return wanted;
}

}  // namespace troupe::actors
