#pragma once

#include <span>
#include <utility>
#include <vector>

#include "apps/gpt/stage/model.hpp"
#include "apps/gpt/stage/trainable_model.hpp"

namespace troupe::apps::gpt {

/// A model whose passes may cover a part of each sequence's positions, so that the answer need not be at the
/// last one.
class RowModel : public TrainableModel {
 public:
  /// As logits(), for the token after that of `row`.
  virtual core::Result<std::span<const float>> logits_of(Parameters parameters, Tokens tokens,
                                                         std::size_t row, const StepHooks& hooks) = 0;
  /// Where the tokens of the last pass went, by layer; empty without experts.
  virtual std::span<const ExpertRoutes> routes() const { return {}; }
};

/// The plain reference, which computes immediately, with the interface that the trainer uses.
class HostModel final : public RowModel {
 public:
  explicit HostModel(Model model)
      : model_(std::move(model)), tally_(config().layers, config().experts.count) {}

  const ModelConfig& config() const override { return model_.config(); }
  const ParameterTable& table() const override { return model_.table(); }
  BatchShape shape() const override { return model_.shape(); }
  core::DType dtype() const override { return core::DType::f32; }
  std::size_t activation_bytes() const override { return model_.activation_bytes(); }

  core::Result<void> forward_backward(Parameters parameters, Gradients gradients, Tokens tokens,
                                      Tokens targets, const StepHooks& hooks) override;
  core::Result<void> forward_loss(Parameters parameters, Tokens tokens, Tokens targets,
                                  const StepHooks& hooks) override;
  core::Result<std::vector<double>> take_losses() override { return std::exchange(losses_, {}); }
  ExpertTally take_expert_tally() override {
    return std::exchange(tally_, {config().layers, config().experts.count});
  }
  core::Result<std::span<const float>> logits(Parameters parameters, Tokens tokens,
                                              const StepHooks& hooks) override;
  core::Result<std::span<const float>> logits_of(Parameters parameters, Tokens tokens, std::size_t row,
                                                 const StepHooks& hooks) override;
  std::span<const ExpertRoutes> routes() const override { return model_.routes(); }

 private:
  Model model_;
  std::vector<double> losses_;
  ExpertTally tally_;
};

}  // namespace troupe::apps::gpt
