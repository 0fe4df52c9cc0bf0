#pragma once

#include <memory>
#include <vector>

#include "apps/gpt/model/group.hpp"
#include "apps/gpt/model/share.hpp"
#include "apps/gpt/stage/host_model.hpp"
#include "apps/gpt/stage/trainable_model.hpp"

namespace troupe::apps::gpt {

/// One share of the host's model, whose members compute together: all of them make every call with the same
/// tokens, get the same losses and logits, and use the group.
class TensorModel final : public RowModel {
 public:
  /// The groups must outlive the model and are not used before the first pass. The share has passed
  /// check_share(). If `context` shares the sequences, `shape` is as Model::create() takes it.
  static core::Result<std::unique_ptr<TensorModel>> create(const ModelConfig& config, BatchShape shape,
                                                           Keep keep, const TensorShare& share,
                                                           TensorGroup<float>& group,
                                                           TensorGroup<float>* context = nullptr);

  /// What activation_bytes() would be after create().
  static std::size_t bytes(const ModelConfig& config, BatchShape shape, Keep keep, const TensorShare& share);

  /// The whole model's.
  const ModelConfig& config() const override { return config_; }
  /// The share's, as is everything that passes are given.
  const ParameterTable& table() const override { return table_.part(); }
  BatchShape shape() const override { return model_.shape(); }
  core::DType dtype() const override { return core::DType::f32; }
  std::size_t activation_bytes() const override { return model_.activation_bytes(); }
  const SharedTable& shared() const { return table_; }

  /// A gradient that is also a sum over the group (SharedParameter::also_sum) is this member's part of it.
  core::Result<void> forward_backward(Parameters parameters, Gradients gradients, Tokens tokens,
                                      Tokens targets, const StepHooks& hooks) override {
    return model_.forward_backward(parameters, gradients, tokens, targets, hooks);
  }
  core::Result<void> forward_loss(Parameters parameters, Tokens tokens, Tokens targets,
                                  const StepHooks& hooks) override {
    return model_.forward_loss(parameters, tokens, targets, hooks);
  }
  core::Result<std::vector<double>> take_losses() override { return model_.take_losses(); }
  ExpertTally take_expert_tally() override { return model_.take_expert_tally(); }
  core::Result<std::span<const float>> logits(Parameters parameters, Tokens tokens,
                                              const StepHooks& hooks) override {
    return model_.logits(parameters, tokens, hooks);
  }
  core::Result<std::span<const float>> logits_of(Parameters parameters, Tokens tokens, std::size_t row,
                                                 const StepHooks& hooks) override {
    return model_.logits_of(parameters, tokens, row, hooks);
  }
  std::span<const ExpertRoutes> routes() const override { return model_.routes(); }

 private:
  TensorModel(const ModelConfig& config, const TensorShare& share, Model model);

  ModelConfig config_;
  SharedTable table_;
  HostModel model_;
};

}  // namespace troupe::apps::gpt
