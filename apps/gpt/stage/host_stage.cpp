#include "apps/gpt/stage/host_stage.hpp"

#include "apps/gpt/layers/matmul.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Result;

Result<void> HostStage::forward(int chunk, PassSlots slots, const StagePass& pass, StageText text) {
  return with_floats(pass,
                     [&](const Pass<float>& own) { return model_->forward(chunk, slots, own, text.tokens); });
}

Result<void> HostStage::loss(int chunk, int slot, const StagePass& pass, StageText text) {
  losses_.push_back({TRY(with_floats(
      pass, [&](const Pass<float>& own) { return model_->loss(chunk, slot, own, text.targets); }))});
  return {};
}

Result<std::vector<StageLoss>> HostStage::take_losses(std::size_t count) {
  CHECK(count <= losses_.size(), "losses are computed before they are taken");
  const auto end = losses_.begin() + static_cast<std::ptrdiff_t>(count);
  std::vector<StageLoss> taken(losses_.begin(), end);
  losses_.erase(losses_.begin(), end);
  return taken;
}

Result<void> HostStage::backward(int chunk, int slot, const StagePass& pass, StageText text) {
  return with_floats(pass, [&](const Pass<float>& own) {
    return model_->backward(chunk, slot, own, text.tokens, text.targets);
  });
}

Result<void> HostStage::backward_weight(int slot, const StagePass& pass) {
  return with_floats(pass, [&](const Pass<float>& own) { return model_->backward_weight(slot, own); });
}

void HostStage::add_head_gradient(const HeadFactors& factors, float* gradient) {
  const auto logits = factors.logits.as<float>(), normed = factors.normed.as<float>();
  const std::size_t C = table().specs[table().embedding].shape[1];
  const std::size_t V = table().specs[table().embedding].shape[0];
  linear_backward_weight({normed.size() / C, C, V}, logits.data(), normed.data(), gradient);
}

Result<void> HostStage::forward_sequence(int chunk, const StagePass& pass, TokenSpan tokens) {
  return with_floats(pass,
                     [&](const Pass<float>& own) { return model_->forward_sequence(chunk, own, tokens); });
}

Result<std::span<const float>> HostStage::logits_of(int chunk, std::size_t token, const StagePass& pass) {
  return with_floats(pass, [&](const Pass<float>& own) { return model_->logits_of(chunk, token, own); });
}

}  // namespace troupe::apps::gpt
