#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "apps/gpt/stage/stage_core.hpp"
#include "apps/gpt/stage/trainable_stage.hpp"

namespace troupe::apps::gpt {

/// A stage for the trainer over an engine X, as far as stages on all devices are alike.
template <class X>
class EngineStage : public TrainableStage {
 public:
  using E = typename X::Element;

  const ParameterTable& table() const override { return core_->table(); }
  std::size_t own_rows() const override { return core_->own_rows(); }
  std::size_t own_rows_of(std::size_t length) const override { return core_->own_rows_of(length); }

  StageRows input(int slot) override { return {core_->stream_at(core_->input(slot))}; }
  StageRows output(int chunk, int slot) override {
    return {core_->stream_at(core_->activations(chunk, slot).output)};
  }
  StageRows gradient(int slot) override { return {core_->rows_at(core_->gradient(slot))}; }

  core::Result<void> backward_weight(int slot, const StagePass& pass) override {
    return core_->backward_weight(slot, own(pass));
  }
  std::vector<HeadFactors> head_factors(int chunk, int slot) override {
    return {core_->head_factors(chunk, slot)};
  }
  void add_head_gradient(const HeadFactors& factors, float* gradient) override {
    core_->add_head_gradient(factors, gradient);
  }
  std::span<const ExpertRoutes> routes(int chunk, int slot, std::size_t) override {
    return core_->activations(chunk, slot).routes;
  }

 protected:
  static Pass<E> own(const StagePass& pass) { return {pass.parameters, pass.gradients, pass.hooks}; }

  std::optional<StageCore<X>> core_;  ///< set when the stage is created
};

}  // namespace troupe::apps::gpt
