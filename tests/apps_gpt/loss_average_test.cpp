#include "apps/gpt/options/loss_average.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "actors/simulation/simulation.hpp"
#include "apps/gpt/run/distributed_trainer.hpp"
#include "apps/gpt/run/local_trainer.hpp"
#include "core/errors.hpp"
#include "tests/apps_gpt/masked_text.hpp"
#include "tests/apps_gpt/tensors.hpp"
#include "tests/apps_gpt/typed_model.hpp"

namespace troupe::apps::gpt {
namespace {

constexpr int kLanes = 3, kMicrobatches = 2;

TrainerOptions uneven_run(bool experts = false) {
  TrainerOptions options;
  options.model = preset("tiny").value();
  if (experts) {
    options.model.experts = {.count = 4, .choices = 2, .feed_forward = 24, .balance = 0.5, .z_loss = 0.1};
    options.model.initial_deviation = 0.2;
  }
  options.microbatch = {.batch = 2, .length = 16};
  options.schedule = {.peak = 1e-2, .floor = 1e-2, .warmup = core::Step{0}, .total = core::Step{4}};
  auto& training = options.session.training;
  training.lanes = kLanes;
  training.microbatches = kMicrobatches;
  training.optimizer.weight_decay = 0;
  return options;
}

class LossAverages : public testing::Test {
 protected:
  const TextFile file_{"", ".jsonl"};
  const Corpus corpus_ = open_chats(file_.path(), 16);
};

/// A step's microbatches at the initial weights, each alone.
struct Alone {
  std::vector<double> words, routers;
  std::vector<std::size_t> targets;
  std::vector<Tensors<float>> of_words, of_routers;  ///< gradients
  std::size_t all_targets = 0;
};

Alone each_alone(const TrainerOptions& options, const Corpus& corpus) {
  auto model = Model::create(options.model, options.microbatch).value();
  auto values = initial_parameters(model.table().specs, options.seed);
  Alone alone;
  Batch batch(options.microbatch);
  for (int i = 0; i < kLanes * kMicrobatches; ++i) {
    batch.fill_at_random(corpus.training(), {options.seed, core::Step{0}, core::Lane{i / kMicrobatches},
                                             static_cast<std::uint32_t>(i % kMicrobatches)});
    auto& words = alone.of_words.emplace_back(model.table().specs);
    auto& routers = alone.of_routers.emplace_back(model.table().specs);
    const StepHooks only_words{.loss_scale = 1, .router_scale = 0};
    const StepHooks only_routers{.loss_scale = 0, .router_scale = 1};
    const auto pass = [&](Tensors<float>& gradients, const StepHooks& hooks) {
      return static_cast<double>(model
                                     .forward_backward(values.constant(), gradients.pointers(),
                                                       batch.tokens(), batch.targets(), hooks)
                                     .value());
    };
    const double all = pass(words, only_words);
    pass(routers, only_routers);
    double of_routers = 0;
    for (const auto& layer : model.routes()) of_routers += layer.loss;
    alone.words.push_back(all - of_routers);
    alone.routers.push_back(of_routers);
    alone.targets.push_back(batch.target_count());
    alone.all_targets += batch.target_count();
  }
  return alone;
}

/// The norm of sums with these weights, for the words and for the routers.
double norm_of(const Alone& alone, const std::vector<double>& words, double routers) {
  double squares = 0;
  for (std::size_t tensor = 0; tensor < alone.of_words[0].tensors.size(); ++tensor) {
    for (std::size_t e = 0; e < alone.of_words[0].tensors[tensor].size(); ++e) {
      double sum = 0;
      for (std::size_t i = 0; i < words.size(); ++i) {
        sum += words[i] * static_cast<double>(alone.of_words[i].tensors[tensor][e]);
        sum += routers * static_cast<double>(alone.of_routers[i].tensors[tensor][e]);
      }
      squares += sum * sum;
    }
  }
  return std::sqrt(squares);
}

struct Expected {
  double loss = 0, norm = 0;
};

Expected expected_of(const Alone& alone, LossAverage average) {
  const double count = static_cast<double>(alone.words.size());
  std::vector<double> weights;
  Expected expected;
  for (std::size_t i = 0; i < alone.words.size(); ++i) {
    weights.push_back(average == LossAverage::lanes
                          ? 1 / count
                          : static_cast<double>(alone.targets[i]) / static_cast<double>(alone.all_targets));
    expected.loss += weights.back() * alone.words[i] + alone.routers[i] / count;
  }
  expected.norm = norm_of(alone, weights, 1 / count);
  return expected;
}

/// The first step of a job of this many simulated ranks.
actors::StepOutcome first_step(const TrainerOptions& options, const Corpus& corpus, int ranks) {
  actors::SimulationOptions simulation;
  simulation.ranks = {ranks};
  actors::StepOutcome outcome;
  actors::Simulation job(simulation);
  const auto report = job.run([&](actors::SimulatedRank& rank) -> core::Result<void> {
    auto trainer = TRY(DistributedTrainer::create(rank, options, corpus));
    outcome = TRY(trainer->step());
    return trainer->session().leave();
  });
  for (const auto& result : report.results) EXPECT_TRUE(result) << result.error().message;
  return outcome;
}

TEST_F(LossAverages, WeighTargetsOrMeansAndRoutersPerMicrobatch) {
  for (const bool experts : {false, true}) {
    for (const auto average : {LossAverage::tokens, LossAverage::lanes}) {
      auto options = uneven_run(experts);
      options.loss_average = average;
      const auto alone = each_alone(options, corpus_);
      ASSERT_GT(std::set(alone.targets.begin(), alone.targets.end()).size(), 2U) << "they are uneven";
      const auto [loss, norm] = expected_of(alone, average);

      const StepReport report = LocalTrainer::create(options, corpus_).value().step().value();

      EXPECT_NEAR(report.loss, loss, 1e-6 * loss) << name_of(average) << experts;
      EXPECT_NEAR(report.gradient_norm, norm, 1e-5 * norm) << name_of(average) << experts;
      EXPECT_EQ(report.targets, alone.all_targets);
      for (const int ranks : {1, 3}) {
        const auto outcome = first_step(options, corpus_, ranks);
        EXPECT_TRUE(outcome.committed);
        EXPECT_NEAR(outcome.loss, loss, 1e-6 * loss) << name_of(average) << experts;
        EXPECT_NEAR(outcome.gradient_norm, norm, 1e-5 * norm) << name_of(average) << experts;
        EXPECT_EQ(outcome.weight, average == LossAverage::tokens ? static_cast<double>(alone.all_targets)
                                                                 : static_cast<double>(kLanes));
      }
    }
  }
}

TEST_F(LossAverages, OfAnEvaluationAreOverItsTargets) {
  const auto options = uneven_run();
  auto trainer = LocalTrainer::create(options, corpus_).value();
  Model model = Model::create(options.model, options.microbatch).value();
  constexpr std::size_t kBatches = 3;
  double sum = 0;
  std::size_t targets = 0;
  Batch batch(options.microbatch);
  for (std::size_t i = 0; i < kBatches; ++i) {
    batch.fill_evenly(corpus_.evaluation(), i, kBatches);
    const auto mean = model.forward_loss(trainer.parameters(), batch.tokens(), batch.targets()).value();
    sum += static_cast<double>(mean) * static_cast<double>(batch.target_count());
    targets += batch.target_count();
  }

  const auto evaluation = trainer.evaluate(kBatches).value();

  ASSERT_TRUE(evaluation);
  EXPECT_NEAR(*evaluation, sum / static_cast<double>(targets), 1e-6);
}

TEST(TargetMean, OfNoTargetIsNone) {
  TargetMean mean(16);
  mean.add(0);
  mean.count(0);

  EXPECT_EQ(mean.value(), std::nullopt);
}

TEST_F(LossAverages, KnowTheTargetsOfAMicrobatchFromItsPlace) {
  const BatchShape shape{3, 16};
  Batch batch(shape);
  for (std::uint32_t m = 0; m < 40; ++m) {
    const MicrobatchPlace place{7, core::Step{2}, core::Lane{1}, m};
    batch.fill_at_random(corpus_.training(), place);

    EXPECT_EQ(targets_at_random(corpus_.training(), shape, place), batch.target_count());
  }
}

/// When a text is learned as a whole, nothing changes but the last bits of what is reported.
TEST(LossAverage, OfPlainTextEqualsMeansOfMeansBitwise) {
  const TextFile file(some_text(4000));
  const Corpus corpus = Corpus::open(file.path(), 16).value();
  for (const int microbatches : {1, 2, 3}) {
    for (const std::size_t batch : {1, 3}) {
      auto options = uneven_run();
      options.microbatch.batch = batch;
      options.session.training.microbatches = microbatches;
      options.session.training.clip_norm = 0.01;
      std::vector<std::uint64_t> states;
      std::vector<double> losses, norms;
      for (const auto average : {LossAverage::tokens, LossAverage::lanes}) {
        options.loss_average = average;
        actors::SimulationOptions simulation;
        actors::Simulation job(simulation);
        const auto report = job.run([&](actors::SimulatedRank& rank) -> core::Result<void> {
          auto trainer = TRY(DistributedTrainer::create(rank, options, corpus));
          for (int step = 0; step < 3; ++step) {
            const auto outcome = TRY(trainer->step());
            losses.push_back(outcome.loss);
            norms.push_back(outcome.gradient_norm);
          }
          states.push_back(TRY(trainer->parameter_hash()));
          return trainer->session().leave();
        });
        ASSERT_TRUE(report.results[0]) << report.results[0].error().message;
      }
      EXPECT_EQ(states[0], states[1]);
      for (std::size_t step = 0; step < 3; ++step) {
        EXPECT_EQ(norms[step], norms[3 + step]);
        EXPECT_NEAR(losses[step], losses[3 + step], 1e-15 * losses[step]);
      }
    }
  }
}

}  // namespace
}  // namespace troupe::apps::gpt
