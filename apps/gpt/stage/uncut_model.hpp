#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "apps/gpt/model/config.hpp"
#include "apps/gpt/model/expert_tally.hpp"
#include "apps/gpt/stage/trainable_model.hpp"
#include "apps/gpt/stage/trainable_stage.hpp"

namespace troupe::apps::gpt {

/// A whole model: the stage of a pipeline of one. If a group shares its layers, all members make every call
/// with the same tokens, and parameters and gradients are those of this rank's share. If ranks share each
/// sequence (ContextStage), losses are the contribution of this rank's rows.
class UncutModel final : public TrainableModel {
 public:
  /// `stage` has all layers (uncut()), one slot, and microbatches of `shape`; its memory takes
  /// `activation_bytes`.
  UncutModel(const ModelConfig& config, BatchShape shape, std::unique_ptr<TrainableStage> stage,
             std::size_t activation_bytes);

  const ModelConfig& config() const override { return config_; }
  const ParameterTable& table() const override { return stage_->table(); }
  BatchShape shape() const override { return shape_; }
  core::DType dtype() const override { return stage_->dtype(); }
  std::size_t activation_bytes() const override { return activation_bytes_; }

  core::Result<void> forward_backward(Parameters parameters, Gradients gradients, Tokens tokens,
                                      Tokens targets, const StepHooks& hooks) override;
  core::Result<void> forward_loss(Parameters parameters, Tokens tokens, Tokens targets,
                                  const StepHooks& hooks) override;
  core::Result<std::vector<double>> take_losses() override;
  ExpertTally take_expert_tally() override;
  core::Result<std::span<const float>> logits(Parameters parameters, Tokens tokens,
                                              const StepHooks& hooks) override;

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

}  // namespace troupe::apps::gpt
