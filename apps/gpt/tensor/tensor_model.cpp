#include "apps/gpt/tensor/tensor_model.hpp"

#include <utility>

#include "apps/gpt/tensor/rows.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Result;

Result<std::unique_ptr<TensorModel>> TensorModel::create(const ModelConfig& config, BatchShape shape,
                                                         Keep keep, const TensorShare& share,
                                                         TensorGroup<float>& group,
                                                         TensorGroup<float>* context) {
  TRY(validate(config));
  auto model =
      TRY(Model::create(config_of_share(config, share.size), shape, keep, {&group, share.sequence, context}));
  return std::unique_ptr<TensorModel>(new TensorModel(config, share, group, std::move(model)));
}

std::size_t TensorModel::bytes(const ModelConfig& config, BatchShape shape, Keep keep,
                               const TensorShare& share) {
  const std::size_t N = shape.rows();
  ActivationExtents extents;
  if (share.sequence) extents.stream_rows = most_own_rows(N, share.size);
  Carver<float> plan(nullptr);
  carve(plan, config_of_share(config, share.size), shape, keep, extents);
  carve_tensor(plan, share.size, share.sequence, N, config);
  return plan.elements() * sizeof(float);
}

TensorModel::TensorModel(const ModelConfig& config, const TensorShare& share, TensorGroup<float>& group,
                         Model model)
    : config_(config),
      table_(config, share),
      group_(group),
      partial_(table_.summed_elements()),
      model_(std::move(model)) {}

Result<void> TensorModel::forward_backward(Parameters parameters, Gradients gradients, Tokens tokens,
                                           Tokens targets, const StepHooks& hooks) {
  StepHooks own = hooks;
  Result<void> finished;  // the first failure
  own.gradient_ready = [&](std::size_t parameter) {
    if (hooks.last_microbatch && finished)
      finished = partial_.finish(parameter, group_, gradients[parameter]);
    if (finished && hooks.gradient_ready) hooks.gradient_ready(parameter);
  };
  TRY(model_.forward_backward(parameters, partial_.places(gradients), tokens, targets, own));
  return finished;
}

}  // namespace troupe::apps::gpt
