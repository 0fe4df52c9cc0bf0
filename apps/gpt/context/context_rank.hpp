#pragma once

#include <memory>

#include "actors/session/session.hpp"
#include "apps/gpt/run_options.hpp"
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

  /// Before open(), after which it may be used.
  core::Result<std::unique_ptr<TrainableModel>> make_model(const TrainerOptions& options, TensorRank& tensor);
  core::Result<void> open(actors::Session& session);

  TensorGroup<float>& group() { return group_; }
  /// Of what each of the group says, in f32.
  core::Result<double> sum(double own);

 private:
  ContextRank(std::size_t size, std::size_t index, core::Numerics numerics) : group_(size, index, numerics) {}

  SessionTensorGroup group_;
};

}  // namespace troupe::apps::gpt
