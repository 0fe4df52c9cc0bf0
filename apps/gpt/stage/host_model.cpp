#include "apps/gpt/stage/host_model.hpp"

#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Result;

Result<void> HostModel::forward_backward(Parameters parameters, Gradients gradients, Tokens tokens,
                                         Tokens targets, const StepHooks& hooks) {
  losses_.push_back(TRY(model_.forward_backward(parameters, gradients, tokens, targets, hooks)));
  add_pass(tally_, model_.routes());
  return {};
}

Result<void> HostModel::forward_loss(Parameters parameters, Tokens tokens, Tokens targets,
                                     const StepHooks& hooks) {
  losses_.push_back(TRY(model_.forward_loss(parameters, tokens, targets, hooks)));
  return {};
}

Result<std::span<const float>> HostModel::logits(Parameters parameters, Tokens tokens,
                                                 const StepHooks& hooks) {
  return model_.logits(parameters, tokens, hooks);
}

Result<std::span<const float>> HostModel::logits_of(Parameters parameters, Tokens tokens, std::size_t row,
                                                    const StepHooks& hooks) {
  return model_.logits_of(parameters, tokens, row, hooks);
}

}  // namespace troupe::apps::gpt
