#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "actors/planes/step/rank_tensors.hpp"
#include "actors/planes/step/state.hpp"
#include "core/checkpoint/load_plan.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/shared_load.hpp"
#include "core/state/strictness.hpp"
#include "gpu/buffer.hpp"

namespace troupe::actors {

/// What a rank reads from a checkpoint, and where it goes: memory[i] is for targets[i].
struct Wanted {
  std::vector<core::LoadTarget> targets;
  std::vector<gpu::BufferView> memory;

  void add(core::LoadTarget target, gpu::BufferView view) {
    targets.push_back(std::move(target));
    memory.push_back(view);
  }
  core::KeySet keys() const;
  /// Removes the targets with these keys.
  void drop(const core::KeySet& keys);
};

/// The key under which a checkpoint has this state of a stored part of a parameter. The exact value is
/// preferred: an fp32 parameter is read from the fp32 copy that a job with narrow parameters saved, and such
/// a job's copy is read from the parameter of a job that had none.
std::string key_in(const core::Manifest& manifest, const TrainingPlan& plan, core::ParameterIndex parameter,
                   StateKind kind, const std::string& part);

/// key_in() for a piece of a rank's state; the trainer's own tensors have their own keys.
std::string key_of(const core::Manifest& manifest, const TrainingPlan& plan, const RankState& state,
                   std::size_t piece);

/// The keys of all parameters and their state that the job's ranks request from this checkpoint.
core::KeySet requested_keys(const core::Manifest& manifest, const TrainingPlan& plan, bool optimizer);

/// What all ranks of a job want from a checkpoint: parameters, and each rank its optimizer state for them; if
/// `optimizer` is false, only what follows from the weights. What the checkpoint lacks is left out, and so
/// are the trainer's tensors, because ranks know only where their own are.
core::SharedTargets shared_targets(const TrainingPlan& plan, const core::Manifest& manifest, bool optimizer);

/// What the rank wants: all parameters, its own state of them (moments only with `optimizer`), and the
/// trainer's tensors. `memory` is that of state.pieces.
Wanted wanted_of(const core::Manifest& manifest, const TrainingPlan& plan, const RankState& state,
                 std::span<const gpu::BufferView> memory, const RankTensors& own,
                 std::span<const TrainerTensor> tensors, bool optimizer);

}  // namespace troupe::actors
