#include "tests/apps_gpt/uncut_model.hpp"

#include <numeric>
#include <utility>

#include "apps/gpt/stage/host_stage.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Result;

UncutModel::UncutModel(const ModelConfig& config, BatchShape shape, std::unique_ptr<TrainableStage> stage,
                       std::size_t activation_bytes)
    : config_(config),
      shape_(shape),
      stage_(std::move(stage)),
      activation_bytes_(activation_bytes),
      tally_(config.layers, config.experts.count) {}

Result<void> UncutModel::forward_backward(Parameters parameters, Gradients gradients, Tokens tokens,
                                          Tokens targets, const StepHooks& hooks) {
  TRY(forward_loss(parameters, tokens, targets, hooks));
  played_.back().is_trained = true;
  for (const ExpertRoutes& layer : stage_->routes(0, 0, 0)) played_.back().routes.push_back(layer.loss);
  add_pass(tally_, stage_->routes(0, 0, 0));
  if (hooks.begin_backward) TRY(hooks.begin_backward());
  return stage_->backward(0, 0, {parameters, gradients, hooks}, {tokens, targets});
}

Result<void> UncutModel::forward_loss(Parameters parameters, Tokens tokens, Tokens targets,
                                      const StepHooks& hooks) {
  const StagePass pass{parameters, {}, hooks};
  TRY(stage_->forward(0, {}, pass, {tokens, targets}));
  TRY(stage_->loss(0, 0, pass, {tokens, targets}));
  played_.emplace_back();
  return {};
}

Result<std::vector<double>> UncutModel::take_losses() {
  std::vector<double> losses;
  for (const StageLoss& loss : TRY(stage_->take_losses(played_.size()))) {
    const Played& pass = played_[losses.size()];
    double total = loss.words;
    if (pass.is_trained && !loss.routes.empty()) {
      total = loss.total();
    } else if (pass.is_trained && config_.experts.count > 0) {
      // A pipeline reports the same (RouteLosses::total()).
      total = static_cast<float>(std::accumulate(pass.routes.begin(), pass.routes.end(), total));
    }
    losses.push_back(total);
  }
  played_.clear();
  return losses;
}

ExpertTally UncutModel::take_expert_tally() {
  return std::exchange(tally_, {config_.layers, config_.experts.count});
}

Result<std::span<const float>> UncutModel::logits(Parameters parameters, Tokens tokens,
                                                  const StepHooks& hooks) {
  const StagePass pass{parameters, {}, hooks};
  TRY(stage_->forward_sequence(0, pass, tokens));
  return stage_->logits_of(0, tokens.size() - 1, pass);
}

Result<std::unique_ptr<UncutModel>> create_host_model(const ModelConfig& config, BatchShape shape, Keep keep,
                                                      const TensorShare& share, TensorGroup<float>* group) {
  TRY(validate(config));
  const StageShape whole{.batch = shape, .keep = keep, .share = share};
  auto stage = TRY(create_host_stage(config, uncut(config), whole, {group}));
  return std::make_unique<UncutModel>(config, shape, std::move(stage),
                                      host_stage_bytes(config, uncut(config), whole));
}

}  // namespace troupe::apps::gpt
