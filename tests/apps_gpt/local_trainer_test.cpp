#include "apps/gpt/run/local_trainer.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/apps_gpt/tensors.hpp"
#include "tests/apps_gpt/text_file.hpp"
#include "tests/apps_gpt/typed_model.hpp"

namespace troupe::apps::gpt {
namespace {

TrainerOptions small_run() {
  TrainerOptions options;
  options.model = preset("tiny").value();
  options.microbatch = {.batch = 2, .length = 16};
  options.schedule = {.peak = 1e-2, .floor = 1e-3, .warmup = core::Step{5}, .total = core::Step{60}};
  auto& training = options.session.training;
  training.lanes = 4;
  training.clip_norm = 1;
  training.optimizer.beta2 = 0.95;
  training.optimizer.weight_decay = 0.1;
  return options;
}

TEST(LocalTrainer, LearnsATextThatRepeatsItself) {
  const TextFile file(some_text(4000));
  const Corpus corpus = Corpus::open(file.path(), 16).value();
  auto trainer = LocalTrainer::create(small_run(), corpus).value();
  const double before = trainer.evaluate(4).value().value();

  for (int step = 0; step < 60; ++step) ASSERT_TRUE(trainer.step());

  EXPECT_NEAR(before, std::log(256.0), 0.05);
  EXPECT_LT(trainer.evaluate(4).value().value(), 2.0);
}

TEST(LocalTrainer, RepeatsARunBitForBit) {
  const TextFile file(some_text(4000));
  const Corpus corpus = Corpus::open(file.path(), 16).value();
  auto first = LocalTrainer::create(small_run(), corpus).value();
  auto second = LocalTrainer::create(small_run(), corpus).value();

  for (int step = 0; step < 3; ++step) {
    const StepReport a = first.step().value(), b = second.step().value();
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_EQ(a.gradient_norm, b.gradient_norm);
  }

  EXPECT_EQ(first.evaluate(2).value(), second.evaluate(2).value());
}

// One step of AdamW from zero moments, written out in double: m / (1 - beta1) is the gradient itself, and
// sqrt(v / (1 - beta2)) its magnitude.
TEST(LocalTrainer, FirstStepIsAdamWOnClippedMeanGradients) {
  const TextFile file(some_text(4000));
  const Corpus corpus = Corpus::open(file.path(), 16).value();
  TrainerOptions options = small_run();
  auto& training = options.session.training;
  training.clip_norm = 0.01;
  auto trainer = LocalTrainer::create(options, corpus).value();
  const auto specs = parameters(options.model);
  Tensors<float> start = initial_parameters(specs, options.seed), sum(specs);
  Model model = Model::create(options.model, options.microbatch).value();
  Batch batch(options.microbatch);
  double loss = 0;
  for (int lane = 0; lane < 4; ++lane) {
    batch.fill_at_random(corpus.training(), {.seed = options.seed, .lane = core::Lane{lane}});
    loss += model.forward_backward(start.constant(), sum.pointers(), batch.tokens(), batch.targets()).value();
  }
  double squares = 0;
  for (const auto& tensor : sum.tensors) {
    for (const float value : tensor) squares += static_cast<double>(value) * value / 16;
  }

  const StepReport report = trainer.step().value();

  EXPECT_NEAR(report.loss, loss / 4, 1e-12);
  EXPECT_NEAR(report.gradient_norm, std::sqrt(squares), 1e-6);
  ASSERT_GT(report.gradient_norm, training.clip_norm);
  const double rate = options.schedule.learning_rate(core::Step{0});
  EXPECT_EQ(report.learning_rate, rate);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const double decay = specs[i].weight_decay ? 0.1 : 0;
    const auto* found = reinterpret_cast<const float*>(trainer.parameters()[i]);
    for (std::size_t j = 0; j < start.tensors[i].size(); ++j) {
      const double gradient = sum.tensors[i][j] / 4 * training.clip_norm / (std::sqrt(squares) + 1e-6);
      const double expected =
          start.tensors[i][j] * (1 - rate * decay) - rate * gradient / (std::abs(gradient) + 1e-8);
      ASSERT_NEAR(found[j], expected, 1e-6) << specs[i].name << " " << j;
    }
  }
}

TEST(LocalTrainer, WithoutLanesIsAnError) {
  const TextFile file(some_text(4000));
  const Corpus corpus = Corpus::open(file.path(), 16).value();
  TrainerOptions options = small_run();
  options.session.training.lanes = 0;

  EXPECT_FALSE(LocalTrainer::create(options, corpus));
}

}  // namespace
}  // namespace troupe::apps::gpt
