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

StepHooks HostModel::following(Parameters parameters, const StepHooks& hooks) {
  StepHooks own = hooks;
  if (!hooks.before_use) return own;
  own.before_use = [this, parameters, &hooks](std::size_t parameter) -> Result<void> {
    TRY(hooks.before_use(parameter));
    parameters_[parameter] = reinterpret_cast<const float*>(parameters[parameter]);
    return {};
  };
  return own;
}

Result<void> HostModel::forward_backward(Parameters parameters, Gradients gradients, Tokens tokens,
                                         Tokens targets, const StepHooks& hooks) {
  losses_.push_back(TRY(
      model_.forward_backward(floats(parameters), gradients, tokens, targets, following(parameters, hooks))));
  tally_.add(model_.routes());
  return {};
}

Result<void> HostModel::forward_loss(Parameters parameters, Tokens tokens, Tokens targets,
                                     const StepHooks& hooks) {
  losses_.push_back(
      TRY(model_.forward_loss(floats(parameters), tokens, targets, following(parameters, hooks))));
  return {};
}

Result<std::span<const float>> HostModel::logits(Parameters parameters, Tokens tokens,
                                                 const StepHooks& hooks) {
  return model_.logits(floats(parameters), tokens, following(parameters, hooks));
}

Result<std::span<const float>> HostModel::logits_of(Parameters parameters, Tokens tokens, std::size_t row,
                                                    const StepHooks& hooks) {
  return model_.logits_of(floats(parameters), tokens, row, following(parameters, hooks));
}

}  // namespace troupe::apps::gpt
