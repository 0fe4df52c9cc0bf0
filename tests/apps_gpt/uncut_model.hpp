#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "apps/gpt/model/activations.hpp"
#include "apps/gpt/model/config.hpp"
#include "apps/gpt/model/expert_tally.hpp"
#include "apps/gpt/model/group.hpp"
#include "apps/gpt/model/share.hpp"
#include "apps/gpt/stage/trainable_stage.hpp"

namespace troupe::apps::gpt {

/// A whole model: the stage of a pipeline of one. If a group shares its layers, all members make every call
/// with the same tokens, and parameters and gradients are those of this rank's share. If ranks share each
/// sequence (ContextStage), losses are the contribution of this rank's rows.
class UncutModel {
 public:
  using Tokens = std::span<const std::int32_t>;
  /// The types of StagePass.
  using Parameters = std::span<const std::byte* const>;
  using Gradients = std::span<float* const>;

  /// `stage` has all layers (uncut()), one slot, and microbatches of `shape`; its memory takes
  /// `activation_bytes`.
  UncutModel(const ModelConfig& config, BatchShape shape, std::unique_ptr<TrainableStage> stage,
             std::size_t activation_bytes);

  const ModelConfig& config() const { return config_; }
  const ParameterTable& table() const { return stage_->table(); }
  BatchShape shape() const { return shape_; }
  core::DType dtype() const { return stage_->dtype(); }
  std::size_t activation_bytes() const { return activation_bytes_; }

  /// Adds the gradients of a microbatch's mean loss; tokens and targets are (B, T).
  core::Result<void> forward_backward(Parameters parameters, Gradients gradients, Tokens tokens,
                                      Tokens targets, const StepHooks& hooks);
  /// Only the loss, for evaluation.
  core::Result<void> forward_loss(Parameters parameters, Tokens tokens, Tokens targets,
                                  const StepHooks& hooks);
  /// The mean losses, in nats, of all passes since the last call, in order. Waits for them.
  core::Result<std::vector<double>> take_losses();
  /// Where the tokens went in the backward passes since the last call.
  ExpertTally take_expert_tally();
  /// Logits (V) of the token that follows one sequence of 1..T tokens. Valid until the next call.
  core::Result<std::span<const float>> logits(Parameters parameters, Tokens tokens, const StepHooks& hooks);

 private:
  ModelConfig config_;
  BatchShape shape_;
  std::unique_ptr<TrainableStage> stage_;
  std::size_t activation_bytes_;
  /// A pass whose loss is not taken yet. An evaluation's loss is only that of the words.
  struct Played {
    bool is_trained = false;
    std::vector<double> routes{};  ///< the balance losses, by layer
  };
  std::vector<Played> played_;
  ExpertTally tally_;
};

/// A whole model, which a group may share the layers of: the stage of a pipeline of one. Errors of
/// create_host_stage().
core::Result<std::unique_ptr<UncutModel>> create_host_model(const ModelConfig& config, BatchShape shape,
                                                            Keep keep = Keep::activations,
                                                            const TensorShare& share = {},
                                                            TensorGroup<float>* group = nullptr);

}  // namespace troupe::apps::gpt
