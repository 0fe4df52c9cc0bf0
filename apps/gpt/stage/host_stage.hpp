#pragma once

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "apps/gpt/model/host_parameters.hpp"
#include "apps/gpt/stage/stage_model.hpp"
#include "apps/gpt/stage/trainable_stage.hpp"

namespace troupe::apps::gpt {

/// The plain reference, which computes immediately, with the interface that the trainer uses.
class HostStage final : public TrainableStage {
 public:
  explicit HostStage(std::unique_ptr<StageModel> model) : model_(std::move(model)) {}

  const ParameterTable& table() const override { return model_->table(); }
  core::DType dtype() const override { return core::DType::f32; }
  std::size_t own_rows() const override { return model_->own_rows(); }
  std::size_t own_rows_of(std::size_t length) const override { return model_->own_rows_of(length); }

  gpu::BufferView input(int slot) override { return gpu::view_of(model_->input(slot)); }
  gpu::BufferView output(int chunk, int slot) override { return gpu::view_of(model_->output(chunk, slot)); }
  gpu::BufferView gradient(int slot) override { return gpu::view_of(model_->gradient(slot)); }

  core::Result<void> forward(int chunk, PassSlots slots, const StagePass& pass, StageText text) override;
  core::Result<void> loss(int chunk, int slot, const StagePass& pass, StageText text) override;
  core::Result<std::vector<StageLoss>> take_losses(std::size_t count) override;
  core::Result<void> backward(int chunk, int slot, const StagePass& pass, StageText text) override;
  core::Result<void> backward_weight(int slot, const StagePass& pass) override;

  HeadFactors head_factors(int chunk, int slot) override { return model_->head_factors(chunk, slot); }
  void add_head_gradient(const HeadFactors& factors, float* gradient) override;
  std::span<const ExpertRoutes> routes(int chunk, int slot) override { return model_->routes(chunk, slot); }

  core::Result<void> forward_sequence(int chunk, const StagePass& pass, TokenSpan tokens) override;
  core::Result<std::span<const float>> logits_of(int chunk, std::size_t token,
                                                 const StagePass& pass) override;

 private:
  /// Calls `run` with a pass over floats.
  template <class Run>
  auto with_floats(const StagePass& pass, const Run& run) {
    const StepHooks hooks = host_.following(pass.parameters, pass.hooks);
    return run(Pass<float>{host_.floats(pass.parameters), pass.gradients, hooks});
  }

  std::unique_ptr<StageModel> model_;
  HostParameters host_;
  std::deque<StageLoss> losses_;
};

}  // namespace troupe::apps::gpt
