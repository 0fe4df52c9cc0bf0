#include "actors/session/wanted.hpp"

#include <utility>

#include "core/check.hpp"

namespace troupe::actors {
namespace {

bool is_moment(StateKind kind) {
  return kind == StateKind::first_moment || kind == StateKind::second_moment;
}

/// All parameters, wherever their optimizer state is.
void add_parameters(Wanted& wanted, const core::Manifest& manifest, const Job& job, const DataPlane& data) {
  for (std::uint32_t p = 0; p < job.specs.size(); ++p) {
    const auto& spec = job.specs[p];
    const auto parts = spec.stored_parts();
    CHECK(parts.has_value(), "what can be stored was checked before");
    auto rest = data.parameter(p);
    for (const auto& part : *parts) {
      const auto bytes = static_cast<std::size_t>(part.bytes());
      wanted.add({key_in(manifest, job, p, StateKind::parameter, part.key), spec.dtype, part.global_shape,
                  part.box(), spec.allow_shape_mismatch},
                 rest.subview(0, bytes));
      rest = rest.subview(bytes, rest.bytes - bytes);
    }
  }
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

std::string key_in(const core::Manifest& manifest, const Job& job, std::uint32_t parameter, StateKind kind,
                   const std::string& part) {
  const auto optimizer = job.options.optimizer.kind;
  const auto master = state_key(StateKind::master, optimizer, part);
  const bool is_value = kind == StateKind::parameter || kind == StateKind::master;
  if (!is_value) return state_key(kind, optimizer, part);
  const bool is_fp32 = kind == StateKind::master || job.specs[parameter].dtype == core::DType::f32;
  return is_fp32 && manifest.find(master) != nullptr ? master : part;
}

std::string key_of(const core::Manifest& manifest, const Job& job, const RankState& state,
                   std::size_t index) {
  const auto& piece = state.pieces[index];
  const auto& key = state.structure.tensors[state.structure.pieces[index].tensor].key;
  if (piece.kind == StateKind::trainer) return key;
  const auto prefix = state_key(piece.kind, job.options.optimizer.kind, "");
  return key_in(manifest, job, piece.tensor, piece.kind, key.substr(prefix.size()));
}

core::KeySet requested_keys(const core::Manifest& manifest, const Job& job, bool optimizer) {
  core::KeySet keys;
  for (std::uint32_t p = 0; p < job.specs.size(); ++p) {
    const auto parts = job.specs[p].stored_parts();
    CHECK(parts.has_value(), "what can be stored was checked before");
    for (auto kind : state_kinds(job, job.parameters[p].buffer)) {
      if (is_moment(kind) && !optimizer) continue;
      for (const auto& part : *parts) keys.insert(key_in(manifest, job, p, kind, part.key));
    }
  }
  return keys;
}

Wanted wanted_of(const core::Manifest& manifest, const Job& job, const RankState& state,
                 std::span<const gpu::BufferView> memory, const DataPlane& data,
                 std::span<const TrainerTensor> tensors, bool optimizer) {
  Wanted wanted;
  add_parameters(wanted, manifest, job, data);
  for (std::size_t i = 0; i < state.pieces.size(); ++i) {
    const auto& piece = state.pieces[i];
    if (piece.kind == StateKind::parameter || (is_moment(piece.kind) && !optimizer)) continue;
    const auto& stored = state.structure.pieces[i];
    const auto& tensor = state.structure.tensors[stored.tensor];
    const bool any_shape = piece.kind == StateKind::trainer
                               ? tensors[piece.tensor].tensor.allow_shape_mismatch
                               : job.specs[piece.tensor].allow_shape_mismatch;
    wanted.add({key_of(manifest, job, state, i), tensor.dtype, tensor.shape, stored.box, any_shape},
               memory[i]);
  }
  return wanted;
}

}  // namespace troupe::actors
