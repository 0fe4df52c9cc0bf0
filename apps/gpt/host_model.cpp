#include "apps/gpt/host_model.hpp"

#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Result;

Model::Parameters HostModel::floats(Parameters parameters) {
  parameters_.clear();
  for (const std::byte* parameter : parameters) {
    parameters_.push_back(reinterpret_cast<const float*>(parameter));
  }
  return parameters_;
}

Result<void> HostModel::forward_backward(Parameters parameters, Gradients gradients, Tokens tokens,
                                         Tokens targets, const StepHooks& hooks) {
  losses_.push_back(TRY(model_.forward_backward(floats(parameters), gradients, tokens, targets, hooks)));
  return {};
}

Result<void> HostModel::forward_loss(Parameters parameters, Tokens tokens, Tokens targets) {
  losses_.push_back(TRY(model_.forward_loss(floats(parameters), tokens, targets)));
  return {};
}

Result<std::span<const float>> HostModel::logits(Parameters parameters, Tokens tokens) {
  return model_.logits(floats(parameters), tokens);
}

}  // namespace troupe::apps::gpt
