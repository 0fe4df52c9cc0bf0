#include "apps/gpt/run/local_trainer.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "apps/gpt/stage/host_stage.hpp"
#include "apps/gpt/stage/models.hpp"
#include "core/errors.hpp"
#include "core/optimizer/optimizer.hpp"

namespace troupe::apps::gpt {

using core::Result;

Result<LocalTrainer> LocalTrainer::create(const TrainerOptions& options, const Corpus& corpus) {
  const auto& training = options.session.training;
  if (training.lanes < 1 || training.microbatches < 1) {
    return core::fail(core::Errc::invalid_argument,
                      "lanes and microbatches must be 1 or more, found {} and {}", training.lanes,
                      training.microbatches);
  }
  const StageShape shape{.batch = options.microbatch, .keep = options.arithmetic.keep};
  auto model = TRY(create_host_stage(options.model, uncut(options.model), shape));
  TRY(check_memory(memory_need(options.model, options.microbatch, {.keep = options.arithmetic.keep},
                               gpu::DeviceKind::host),
                   physical_memory_bytes()));
  LocalTrainer trainer(options, corpus, std::move(model));
  const RandomValues random(options.seed);
  TRY(trainer.begin(options.initial != nullptr ? *options.initial : random));
  return trainer;
}

LocalTrainer::LocalTrainer(const TrainerOptions& options, const Corpus& corpus,
                           std::unique_ptr<TrainableStage> model)
    : options_(options), corpus_(&corpus), model_(std::move(model)), batch_(options.microbatch) {
  for (const ParameterSpec& spec : model_->table().specs) {
    const std::size_t count = spec.elements();
    Tensor& tensor = tensors_.emplace_back();
    for (auto* part : {&tensor.value, &tensor.gradient, &tensor.first_moment, &tensor.second_moment}) {
      part->resize(count);
    }
  }
  for (Tensor& tensor : tensors_) {
    readable_.push_back(reinterpret_cast<const std::byte*>(tensor.value.data()));
    gradients_.push_back(tensor.gradient.data());
  }
}

Result<void> LocalTrainer::begin(const InitialValues& initial) {
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    TRY(initial.read(model_->table().specs[i], tensors_[i].value));
  return {};
}

Result<StepReport> LocalTrainer::step() {
  for (Tensor& tensor : tensors_) std::fill(tensor.gradient.begin(), tensor.gradient.end(), 0.0F);
  const auto& training = options_.session.training;
  const StepAverage average(options_, corpus_->training(), next_step_, training.lanes);
  StepHooks hooks;
  average.set(hooks);
  double loss = 0;
  std::size_t targets = 0;
  for (int lane = 0; lane < training.lanes; ++lane) {
    for (int microbatch = 0; microbatch < training.microbatches; ++microbatch) {
      batch_.fill_at_random(corpus_->training(), {options_.seed, next_step_, core::Lane{lane},
                                                  static_cast<std::uint32_t>(microbatch)});
      const StageText text{batch_.tokens(), batch_.targets()};
      double with_routers = TRY(forward(text, hooks));
      for (const ExpertRoutes& layer : model_->routes(0, 0, 0)) with_routers += layer.loss;
      loss += static_cast<double>(static_cast<float>(with_routers));
      TRY(model_->backward(0, 0, {readable_, gradients_, hooks}, text));
      targets += batch_.target_count();
    }
  }
  TRY(corpus_->check_unchanged());
  const double learning_rate = options_.schedule.learning_rate(next_step_);
  if (hooks.loss_rows && targets == 0)
    return StepReport{core::Step{next_step_.value++}, 0, 0, 0, learning_rate};
  const double share = hooks.loss_rows ? static_cast<double>(*hooks.loss_rows) / static_cast<double>(targets)
                                       : 1.0 / (training.lanes * training.microbatches);
  const double norm = gradient_norm() * share;
  const double clip = training.clip_norm > 0 ? std::min(1.0, training.clip_norm / (norm + 1e-6)) : 1.0;
  update(static_cast<float>(share * clip), learning_rate);
  return StepReport{core::Step{next_step_.value++}, loss * share, targets, norm, learning_rate};
}

Result<double> LocalTrainer::forward(StageText text, const StepHooks& hooks) {
  const StagePass pass{readable_, gradients_, hooks};
  TRY(model_->forward(0, {}, pass, text));
  TRY(model_->loss(0, 0, pass, text));
  return TRY(model_->take_losses(1)).front().words;
}

Result<std::span<const float>> LocalTrainer::logits(TokenSpan tokens) {
  const StepHooks hooks;
  const StagePass pass{readable_, {}, hooks};
  TRY(model_->forward_sequence(0, pass, tokens));
  return model_->logits_of(0, tokens.size() - 1, pass);
}

Result<std::optional<double>> LocalTrainer::evaluate(std::size_t batches) {
  TargetMean mean(options_.microbatch.rows());
  StepHooks hooks;
  mean.set(hooks);
  for (std::size_t index = 0; index < batches; ++index) {
    batch_.fill_evenly(corpus_->evaluation(), index, batches);
    mean.add(TRY(forward({batch_.tokens(), batch_.targets()}, hooks)));
    mean.count(batch_.target_count());
  }
  TRY(corpus_->check_unchanged());
  return mean.value();
}

Result<Perplexity> LocalTrainer::perplexity() {
  const auto loss = [&](TokenSpan tokens, TokenSpan targets) { return forward({tokens, targets}, {}); };
  auto measured = TRY(gpt::perplexity(corpus_->evaluation(), options_.microbatch, loss));
  TRY(corpus_->check_unchanged());
  return measured;
}

double LocalTrainer::gradient_norm() const {
  double squares = 0;
  for (const Tensor& tensor : tensors_) {
    for (const float value : tensor.gradient) squares += static_cast<double>(value) * value;
  }
  return std::sqrt(squares);
}

void LocalTrainer::update(float gradient_scale, double learning_rate) {
  const auto adam = core::settings_of(options_.session.training.optimizer);
  const double count = static_cast<double>(++updates_);
  const auto beta1 = static_cast<float>(adam.beta1), beta2 = static_cast<float>(adam.beta2);
  const auto step_size = static_cast<float>(learning_rate / (1 - std::pow(adam.beta1, count)));
  const auto root_correction = static_cast<float>(std::sqrt(1 - std::pow(adam.beta2, count)));
  const auto epsilon = static_cast<float>(adam.epsilon);
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const double decay = model_->table().specs[i].weight_decay ? adam.weight_decay : 0;
    const auto keep = static_cast<float>(1 - learning_rate * decay);
    Tensor& tensor = tensors_[i];
    for (std::size_t j = 0; j < tensor.value.size(); ++j) {
      const float gradient = tensor.gradient[j] * gradient_scale;
      float& m = tensor.first_moment[j];
      float& v = tensor.second_moment[j];
      m = beta1 * m + (1 - beta1) * gradient;
      v = beta2 * v + (1 - beta2) * gradient * gradient;
      tensor.value[j] = tensor.value[j] * keep - step_size * m / (std::sqrt(v) / root_correction + epsilon);
    }
  }
}

}  // namespace troupe::apps::gpt
