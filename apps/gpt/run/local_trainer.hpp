#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/gpt/model/initial_values.hpp"
#include "apps/gpt/options/run_options.hpp"
#include "apps/gpt/stage/trainable_stage.hpp"
#include "apps/gpt/text/data.hpp"
#include "apps/gpt/text/perplexity.hpp"

namespace troupe::apps::gpt {

struct StepReport {
  core::Step step;
  double loss = 0;           ///< nats, averaged as LossAverage says
  std::size_t targets = 0;   ///< tokens that were learned; without any the step changed nothing
  double gradient_norm = 0;  ///< before clipping
  double learning_rate = 0;
};

/// Data-parallel training with all lanes in one process, one after another: the plain form of what the
/// distributed run computes, for tuning and for comparison. The optimizer is AdamW as PyTorch defines it
/// (torch.optim.AdamW, amsgrad off); of the session's options only lanes, microbatches, the clipping norm and
/// the optimizer's numbers count.
class LocalTrainer {
 public:
  /// The corpus must outlive the trainer.
  static core::Result<LocalTrainer> create(const TrainerOptions& options, const Corpus& corpus);

  core::Result<StepReport> step();

  /// Like RankModel::evaluate().
  core::Result<std::optional<double>> evaluate(std::size_t batches);

  /// Over the whole evaluation text.
  core::Result<Perplexity> perplexity();

  /// Like RankModel::logits().
  core::Result<std::span<const float>> logits(TokenSpan tokens);

  const ModelConfig& config() const { return options_.model; }
  /// In the order of the model's table, in f32.
  std::span<const std::byte* const> parameters() const { return readable_; }

 private:
  struct Tensor {
    std::vector<float> value, gradient, first_moment, second_moment;
  };

  LocalTrainer(const TrainerOptions& options, const Corpus& corpus, std::unique_ptr<TrainableStage> model);
  /// The mean loss of the words, in nats.
  core::Result<double> forward(StageText text, const StepHooks& hooks);
  core::Result<void> begin(const InitialValues& initial);
  double gradient_norm() const;
  void update(float gradient_scale, double learning_rate);

  TrainerOptions options_;
  const Corpus* corpus_;
  std::unique_ptr<TrainableStage> model_;  ///< all layers
  Batch batch_;
  core::Step next_step_;
  std::int64_t updates_ = 0;
  std::vector<Tensor> tensors_;
  std::vector<const std::byte*> readable_;
  std::vector<float*> gradients_;
};

}  // namespace troupe::apps::gpt
