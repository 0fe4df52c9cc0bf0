#pragma once

#include <memory>

#include "actors/session/session.hpp"
#include "apps/gpt/run_options.hpp"
#include "apps/gpt/tensor/session_group.hpp"
#include "apps/gpt/trainable_model.hpp"

namespace troupe::apps::gpt {

/// What a trainer's rank has of context parallelism. To the session the ranks that share sequences are those
/// of a tensor-parallel group in which each keeps all parameters: they play the same lanes, and have the same
/// gradients when these are ready.
class ContextRank {
 public:
  /// Null where context_parallel is 1. Errc::invalid_argument or Errc::unavailable says what it does not go
  /// together with.
  static core::Result<std::unique_ptr<ContextRank>> create(const TrainerOptions& options, core::Rank rank,
                                                           gpu::DeviceKind device);

  /// Before open(), after which it may be used.
  core::Result<std::unique_ptr<TrainableModel>> make_model(const TrainerOptions& options);
  core::Result<void> open(actors::Session& session);

 private:
  ContextRank(std::size_t size, std::size_t index, core::Numerics numerics) : group_(size, index, numerics) {}

  SessionTensorGroup group_;
};

/// The options with what the session is to know of context parallelism.
TrainerOptions with_context_group(TrainerOptions options);

}  // namespace troupe::apps::gpt
