#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "actors/session/session.hpp"
#include "apps/gpt/model/sequence_part.hpp"
#include "apps/gpt/options/run_options.hpp"
#include "apps/gpt/rank/piece_group.hpp"
#include "apps/gpt/rank/session_device_group.hpp"
#include "apps/gpt/rank/session_group.hpp"
#include "apps/gpt/rank/tensor_rank.hpp"
#include "apps/gpt/stage/in_step.hpp"
#include "apps/gpt/stage/models.hpp"
#include "apps/gpt/stage/stage_memory.hpp"
#include "apps/gpt/stage/trainable_stage.hpp"

namespace troupe::apps::gpt {

/// A trainer rank's side of context parallelism: its pieces of each sequence, one or several, and the
/// session's group "cp", whose ranks exchange keys and values. The session adds up the gradients and losses
/// of pieces.
class ContextRank {
 public:
  /// Null if sequences are whole. Errc::invalid_argument or Errc::unavailable says what it cannot be combined
  /// with.
  static core::Result<std::unique_ptr<ContextRank>> create(const TrainerOptions& options, core::Rank rank,
                                                           gpu::DeviceKind device);

  /// For this rank's part of sequences, with the shape's slots. `place` has the session's stream on
  /// a GPU. The result may be used after open().
  core::Result<std::unique_ptr<TrainableStage>> make_stage(const TrainerOptions& options, const StageCut& cut,
                                                           const StageShape& shape, StagePlace place);
  /// Passes compute in `memory`.
  core::Result<void> open(actors::Session& session, const StageMemory& memory);

  /// How many tokens of this rank's piece, counted from its first one, of whole sequences have a target.
  std::size_t own_targets(BatchShape whole, std::size_t piece, std::span<const std::int32_t> targets) const {
    return SequencePart(whole, member(piece)).own_targets(targets);
  }
  /// The sum of all members' values, in f32, from those of this rank's pieces.
  core::Result<double> sum(std::span<const double> own);

 private:
  ContextRank(const SequenceMember& first, std::size_t pieces, core::Numerics numerics,
              gpu::DeviceKind device);
  SequenceMember member(std::size_t piece) const { return {first_.members, first_.index + piece}; }
  bool is_alone() const { return first_.members == own_.members(); }
  TensorGroup<float>& host_group(std::size_t piece);
  DeviceTensorGroup& device_group(std::size_t piece);
  /// The MembersSum of one of this rank's pieces.
  core::Result<void> sum_on_host(std::size_t piece, std::span<float> values);

  SequenceMember first_;  ///< this rank's, of which it may have more
  bool is_on_gpu_;
  InStep own_;
  PieceGroup pieces_;  ///< it or the next with several pieces, otherwise one of the others
  DevicePieceGroup device_pieces_;
  SessionTensorGroup group_;
  SessionDeviceGroup device_group_;
  std::optional<StageMemory> memory_;  ///< set from open() on
};

}  // namespace troupe::apps::gpt
