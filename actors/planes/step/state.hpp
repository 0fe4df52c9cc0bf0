#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "actors/planes/step/trainer_tensor.hpp"
#include "actors/planes/step/training_plan.hpp"
#include "core/boxes/sharded_tensor.hpp"
#include "core/checkpoint/save_plan.hpp"
#include "core/ids.hpp"
#include "core/result.hpp"
#include "core/state/strictness.hpp"
#include "gpu/buffer.hpp"

namespace troupe::actors {

/// What is kept of a parameter between steps.
enum class StateKind : std::uint8_t {
  parameter,     ///< in the parameter's own dtype
  master,        ///< fp32, only of parameters that are narrower
  first_state,   ///< fp32: kept by the optimizer, in the order of core::states_of()
  second_state,  ///< as first_state
  trainer,       ///< of no parameter: a tensor of the trainer's own
};

/// Whether the optimizer keeps it in addition to the values.
bool is_optimizer_state(StateKind kind);

/// The key of a stored tensor of a parameter of the buffer: "<name>", "optimizer.state.fp32_param.<name>",
/// and for the optimizer's states "optimizer.state.<state>.<name>", for example
/// "optimizer.state.exp_avg.<name>".
std::string state_key(StateKind kind, const TrainingBuffer& buffer, const std::string& parameter);

/// What the job keeps of a buffer's parameters.
std::vector<StateKind> state_kinds(const TrainingBuffer& buffer);

/// Where a piece of a stored tensor is in a rank's memory.
struct StatePiece {
  StateKind kind = StateKind::parameter;
  core::BucketIndex bucket{};  ///< for StateKind::trainer: one past the job's buckets
  std::uint32_t tensor = 0;    ///< index in the job's parameters, or in the trainer's tensors
  std::int64_t first = 0;      ///< elements from the beginning of RankTensors::state(kind, bucket), or of
                               ///< the trainer's tensor
};

/// Everything that a rank could save, and where it is. The trainer's tensors come first, then buckets in the
/// order of forward, which is the order in which they are updated.
struct RankState {
  core::SaveStructure structure;
  std::vector<StatePiece> pieces;  ///< of structure.pieces

  bool has_trainer_tensors() const { return !pieces.empty() && pieces.front().kind == StateKind::trainer; }
  /// The bucket of every piece.
  std::vector<core::BucketIndex> buckets() const;
};

/// Like SaveStructure::Tensor::home: other parts of the model have other parameters, but for copies.
std::uint32_t home_of(const core::ParameterSpec& spec, const TrainingPlan& plan, core::Rank rank);

/// The plan is as plan_training() made it, and its keys and tensors can be stored (check_keys()).
RankState state_of(const TrainingPlan& plan, core::Rank rank, std::span<const TrainerTensor> tensors = {});

/// Errc::invalid_argument names a parameter or tensor whose key cannot be stored or is that of another
/// parameter, its optimizer's state or another tensor, and a tensor whose memory has another size or that
/// does not fit its rule.
core::Result<void> check_keys(const TrainingPlan& plan, std::span<const TrainerTensor> tensors);

/// All keys that a save of the job's parameters and their optimizer's states has.
core::KeySet state_keys(const TrainingPlan& plan);

}  // namespace troupe::actors
