#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "tests/gpt_pipeline/pipeline_job.hpp"

// Balancing without a loss: biases of routers, which no optimizer knows, change by the counts of all tokens
// of a step, once.

namespace troupe::apps::gpt {
namespace {

constexpr double kRate = 0.01;

struct BiasRun {
  std::vector<double> losses;
  std::vector<std::vector<float>> biases;  ///< after each step
  std::vector<ExpertTally> loads;          ///< of each step
  std::vector<bool> committed;
  std::uint64_t parameters = 0;

  friend bool operator==(const BiasRun&, const BiasRun&) = default;
};

TrainerOptions biased_options(const Cut& cut, double rate = kRate) {
  auto options = trainer_options(cut);
  options.model.layers = 4;
  options.model.experts.balance = 0;
  options.model.experts.bias_rate = rate;
  return options;
}

std::vector<BiasRun> run_biased(const Cut& cut, const TrainerOptions& options, const Corpus& corpus,
                                int until, actors::Storage* storage = nullptr) {
  std::vector<BiasRun> runs(static_cast<std::size_t>(cut.ranks));
  simulate(
      cut,
      [&](actors::SimulatedRank& rank) -> core::Result<Trained> {
        auto trainer = TRY(DistributedTrainer::create(rank, options, corpus));
        if (rank.storage() != nullptr) TRY(trainer->resume({}));
        BiasRun& run = runs[static_cast<std::size_t>(rank.rank().value)];
        // Steps that are not committed are played again with other tokens.
        for (int i = 0; i < 2 * until && trainer->session().next_step().value < until; ++i) {
          const auto outcome = TRY(trainer->step());
          run.losses.push_back(outcome.loss);
          run.committed.push_back(outcome.committed);
          run.biases.push_back(*trainer->router_biases());
          run.loads.push_back(TRY(trainer->take_expert_load()));
        }
        if (rank.storage() != nullptr) {
          TRY(trainer->save());
          TRY(trainer->session().wait_saves());
        }
        run.parameters = TRY(trainer->parameter_hash());
        TRY(trainer->session().leave());
        return Trained{};
      },
      storage);
  return runs;
}

Cut experts_on(int ranks, int ep, core::Strategy strategy, int stages = 1) {
  Cut cut{.ranks = ranks, .stages = stages, .tied = false, .strategy = strategy, .experts = true};
  cut.expert_parallel = ep;
  return cut;
}

/// What the rule makes of the counts, from biases of zero: up for less than the mean, down for more.
void expect_rule(const BiasRun& run, const TrainerOptions& options) {
  const std::size_t E = options.model.experts.count;
  std::vector<float> expected(options.model.layers * E);
  for (std::size_t step = 0; step < run.biases.size(); ++step) {
    for (std::size_t layer = 0; run.committed[step] && layer < options.model.layers; ++layer) {
      const auto counts = run.loads[step].chosen(layer);
      const auto all = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
      for (std::size_t e = 0; e < E; ++e) {
        const auto times = counts[e] * static_cast<std::int64_t>(E);
        if (times < all) expected[layer * E + e] += static_cast<float>(kRate);
        if (times > all) expected[layer * E + e] -= static_cast<float>(kRate);
      }
    }
    ASSERT_EQ(run.biases[step], expected) << "step " << step;
  }
}

// Covers reduce-6, finish-10.
TEST(RouterBias, FollowsTheCountsOfAllTokensOncePerStep) {
  const TrainingText text;
  const Cut cut = experts_on(1, 1, core::Strategy::zero1);
  const auto options = biased_options(cut);

  const auto run = run_biased(cut, options, text.corpus(), 6)[0];

  ASSERT_EQ(run.biases.size(), 6U);
  expect_rule(run, options);
  const std::int64_t tokens = 8 * 2 * static_cast<std::int64_t>(options.model.context);
  const auto counts = run.loads[0].chosen(1);
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}), 2 * tokens) << "all lanes";
  EXPECT_THAT(std::span(run.biases.back()).first(4), testing::Each(0.0F)) << "the first layer has no router";
  EXPECT_THAT(std::span(run.biases.back()).subspan(4), testing::Contains(testing::Ne(0.0F)));
}

// Covers finish-10.
TEST(RouterBias, IsOneRanksForAnyRanksExpertsAndStages) {
  const TrainingText text;
  const Cut alone = experts_on(1, 1, core::Strategy::ddp);
  const auto expected = run_biased(alone, biased_options(alone), text.corpus(), 20)[0];
  for (const Cut& cut : {experts_on(2, 1, core::Strategy::zero1), experts_on(2, 2, core::Strategy::zero3),
                         experts_on(4, 4, core::Strategy::zero1), experts_on(4, 2, core::Strategy::zero3),
                         experts_on(4, 2, core::Strategy::zero1, 2)}) {
    for (const auto& run : run_biased(cut, biased_options(cut), text.corpus(), 20)) {
      ASSERT_EQ(run.losses, expected.losses) << cut.name();
      ASSERT_EQ(run.biases, expected.biases) << cut.name();
      ASSERT_EQ(run.loads, expected.loads) << cut.name();
      ASSERT_EQ(run.parameters, expected.parameters) << cut.name();
    }
  }
}

TEST(RouterBias, GoesOnFromACheckpointOnAnyOtherRanks) {
  const TrainingText text;
  const std::vector<Cut> cuts{experts_on(1, 1, core::Strategy::zero1),
                              experts_on(4, 4, core::Strategy::zero3),
                              experts_on(2, 1, core::Strategy::zero1, 2)};
  const auto expected = run_biased(cuts[0], biased_options(cuts[0]), text.corpus(), 8)[0];
  for (const Cut& from : cuts) {
    for (const Cut& to : cuts) {
      actors::SimulatedStorage disk({});
      run_biased(from, biased_options(from), text.corpus(), 4, &disk);
      const auto run = run_biased(to, biased_options(to), text.corpus(), 8, &disk)[0];
      const std::vector<std::vector<float>> rest(expected.biases.begin() + 4, expected.biases.end());
      ASSERT_EQ(run.biases, rest) << from.name() << " to " << to.name();
      ASSERT_EQ(run.parameters, expected.parameters) << from.name() << " to " << to.name();
    }
  }
}

/// Each member counts its own rows.
// Covers finish-10.
TEST(RouterBias, FollowsTheCountsOfRanksThatShareSequences) {
  const TrainingText text;
  const auto shared_by = [](int context, int ranks, int stages) {
    Cut cut = experts_on(ranks, 1, core::Strategy::zero3, stages);
    cut.context = context;
    return cut;
  };
  const Cut alone = experts_on(1, 1, core::Strategy::ddp);
  const auto whole = run_biased(alone, biased_options(alone), text.corpus(), 6)[0];
  for (const int context : {2, 4}) {
    const Cut pair = shared_by(context, context, 1);
    const auto options = biased_options(pair);
    const auto expected = run_biased(pair, options, text.corpus(), 6)[0];
    expect_rule(expected, options);
    EXPECT_EQ(expected.loads[0], whole.loads[0]) << "before sums in another order come apart";
    for (const Cut& cut : {shared_by(context, 2 * context, 1), shared_by(context, 2 * context, 2)}) {
      for (const auto& run : run_biased(cut, biased_options(cut), text.corpus(), 6)) {
        ASSERT_EQ(run.biases, expected.biases) << cut.name();
        ASSERT_EQ(run.loads, expected.loads) << cut.name();
        ASSERT_EQ(run.parameters, expected.parameters) << cut.name();
      }
    }
  }
}

// Covers finish-10.
TEST(RouterBias, StaysWhereAStepIsNotCommitted) {
  const TrainingText text;
  const Cut cut = experts_on(2, 2, core::Strategy::zero1);
  auto options = biased_options(cut);
  auto& scaling = options.session.training.loss_scaling;
  scaling.kind = core::LossScale::dynamic;
  scaling.scale = 0x1p127;  // gradients are infinite at first
  scaling.backoff = 0x1p-64;

  const auto run = run_biased(cut, options, text.corpus(), 4)[0];

  EXPECT_THAT(run.committed, testing::Contains(false));
  EXPECT_THAT(run.committed, testing::Contains(true));
  EXPECT_FALSE(run.committed.front());
  EXPECT_THAT(run.biases.front(), testing::Each(0.0F));
  expect_rule(run, options);
}

/// The load of the busiest expert of each layer, over the mean.
double unevenness(const ExpertTally& load, std::size_t first_layer) {
  double worst = 0;
  for (std::size_t layer = first_layer; layer < load.layers(); ++layer) {
    const auto counts = load.chosen(layer);
    const double all = static_cast<double>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
    const double most = static_cast<double>(*std::max_element(counts.begin(), counts.end()));
    worst = std::max(worst, most * static_cast<double>(counts.size()) / all);
  }
  return worst;
}

TEST(RouterBias, EvensOutTheLoadOfSkewedRouters) {
  const TrainingText text;
  const Cut cut = experts_on(1, 1, core::Strategy::zero1);

  // Routers stay as they are, so that the biases alone decide.
  const auto train = [&](double rate) {
    auto options = biased_options(cut, rate);
    options.schedule.peak = options.schedule.floor = 1e-9;
    return run_biased(cut, options, text.corpus(), 60)[0];
  };
  const auto with = train(0.005), without = train(1e-9);

  // A step has few tokens; those of 20 tell what routers tend to.
  const auto of_last = [](const BiasRun& run) {
    ExpertTally sum = run.loads[40];
    for (std::size_t step = 41; step < 60; ++step) sum += run.loads[step];
    return unevenness(sum, 1);
  };
  // More than half of what they are uneven by is gone.
  EXPECT_LT(of_last(with) - 1, (of_last(without) - 1) / 2);
}

}  // namespace
}  // namespace troupe::apps::gpt
