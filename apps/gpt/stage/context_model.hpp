#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "apps/gpt/model/group.hpp"
#include "apps/gpt/model/sequence_part.hpp"
#include "apps/gpt/stage/host_model.hpp"
#include "apps/gpt/stage/trainable_model.hpp"

namespace troupe::apps::gpt {

/// The host's model on one member of a context-parallel group: all of its layers or a share of them, and a
/// part of each sequence (SequencePart). Every call is made by all members with the same tokens, those of
/// whole sequences. A member's gradients and losses are its own rows' contribution to those of the
/// microbatch, which are the sum over the members; the first member reports the router losses. Logits are the
/// same on all members.
class ContextModel final : public TrainableModel {
 public:
  /// `shape` describes whole sequences, the model's shape a part, and it shares them with `group`, which
  /// must outlive it and is not used before the first pass.
  ContextModel(BatchShape shape, TensorGroup<float>& group, std::unique_ptr<RowModel> model);

  const ModelConfig& config() const override { return model_->config(); }
  const ParameterTable& table() const override { return model_->table(); }
  BatchShape shape() const override { return part_.whole(); }
  core::DType dtype() const override { return core::DType::f32; }
  std::size_t activation_bytes() const override { return model_->activation_bytes(); }

  core::Result<void> forward_backward(Parameters parameters, Gradients gradients, Tokens tokens,
                                      Tokens targets, const StepHooks& hooks) override;
  core::Result<void> forward_loss(Parameters parameters, Tokens tokens, Tokens targets,
                                  const StepHooks& hooks) override;
  core::Result<std::vector<double>> take_losses() override { return std::exchange(losses_, {}); }
  ExpertTally take_expert_tally() override { return model_->take_expert_tally(); }
  core::Result<std::span<const float>> logits(Parameters parameters, Tokens tokens,
                                              const StepHooks& hooks) override;

 private:
  SequencePart part_;
  TensorGroup<float>& group_;
  std::unique_ptr<RowModel> model_;
  std::vector<double> losses_;
  std::vector<float> logits_;
};

}  // namespace troupe::apps::gpt
