#include "apps/gpt/stage/context_model.hpp"

#include <algorithm>

#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Result;

ContextModel::ContextModel(BatchShape shape, TensorGroup<float>& group, std::unique_ptr<RowModel> model)
    : part_(shape, member_of(&group)),
      group_(group),
      model_(std::move(model)),
      logits_(model_->config().vocabulary) {}

Result<void> ContextModel::forward_backward(Parameters parameters, Gradients gradients, Tokens tokens,
                                            Tokens targets, const StepHooks& hooks) {
  CHECK(tokens.size() == part_.whole().rows() && targets.size() == part_.whole().rows(),
        "tokens and targets are whole sequences");
  const double share = hooks.loss_rows ? 1 : part_.weight(targets);
  StepHooks own_hooks = hooks;
  own_hooks.loss_scale = hooks.loss_scale * share;
  own_hooks.router_scale = hooks.loss_scale;
  TRY(model_->forward_backward(parameters, gradients, part_.own(tokens), part_.own(targets), own_hooks));
  double loss = TRY(model_->take_losses()).front() * share;
  for (const ExpertRoutes& layer : model_->routes()) loss += layer.loss;
  // As a pipeline reports it (RouteLosses::total()).
  losses_.push_back(config().experts.count > 0 ? static_cast<float>(loss) : loss);
  return {};
}

Result<void> ContextModel::forward_loss(Parameters parameters, Tokens tokens, Tokens targets,
                                        const StepHooks& hooks) {
  TRY(model_->forward_loss(parameters, part_.own(tokens), part_.own(targets), hooks));
  const double share = hooks.loss_rows ? 1 : part_.weight(targets);
  losses_.push_back(TRY(model_->take_losses()).front() * share);
  return {};
}

// One member has the last token's row; the others add zeros.
Result<std::span<const float>> ContextModel::logits(Parameters parameters, Tokens tokens,
                                                    const StepHooks& hooks) {
  const auto own = part_.own_of_one(tokens);
  const auto place = part_.place_of(tokens.size() - 1);
  StepHooks own_hooks = hooks;
  own_hooks.length = tokens.size();
  const auto found = TRY(model_->logits_of(parameters, own, place.value_or(0), own_hooks));
  std::fill(logits_.begin(), logits_.end(), 0.0F);
  if (place) std::copy(found.begin(), found.end(), logits_.begin());
  TRY(group_.sum(logits_));
  return std::span<const float>(logits_);
}

}  // namespace troupe::apps::gpt
