#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "actors/session/session.hpp"
#include "apps/gpt/context/sequence_part.hpp"
#include "apps/gpt/pipeline/stage_memory.hpp"
#include "apps/gpt/pipeline/stages.hpp"
#include "apps/gpt/run_options.hpp"
#include "apps/gpt/tensor/session_device_group.hpp"
#include "apps/gpt/tensor/session_group.hpp"
#include "apps/gpt/tensor/tensor_rank.hpp"
#include "apps/gpt/trainable_model.hpp"

namespace troupe::apps::gpt {

/// What a trainer's rank has of context parallelism: the session's group "cp", whose ranks hand each other
/// keys and values. Gradients and losses of the group are the session's to add.
class ContextRank {
 public:
  /// Null where context_parallel is 1. Errc::invalid_argument or Errc::unavailable says what it does not go
  /// together with.
  static core::Result<std::unique_ptr<ContextRank>> create(const TrainerOptions& options, core::Rank rank,
                                                           gpu::DeviceKind device);

  /// Of the device's memory, what make_model() takes.
  static core::Result<std::size_t> bytes(const TrainerOptions& options, const TensorRank& tensor,
                                         gpu::DeviceKind device);
  /// `compute` is the session's stream of a GPU. What is made may be used after open().
  core::Result<std::unique_ptr<TrainableModel>> make_model(const TrainerOptions& options, TensorRank& tensor,
                                                           gpu::Device& device, gpu::StreamView compute);
  /// Of this rank's part of sequences, with `slots` microbatches. Likewise.
  core::Result<std::unique_ptr<TrainableStage>> make_stage(const TrainerOptions& options, const StageCut& cut,
                                                           const StageShape& shape, StagePlace place);
  /// Passes compute in `memory`.
  core::Result<void> open(actors::Session& session, const StageMemory& memory);

  /// Of what each of the group says, in f32.
  core::Result<double> sum(double own);

 private:
  ContextRank(const SequenceMember& member, core::Numerics numerics, gpu::DeviceKind device);
  /// MembersSum of the group.
  core::Result<void> sum_on_host(std::span<float> values);

  SequenceMember member_;
  bool is_on_gpu_;
  SessionTensorGroup group_;
  SessionDeviceGroup device_group_;
  std::optional<StageMemory> memory_;  ///< from open() on
};

}  // namespace troupe::apps::gpt
