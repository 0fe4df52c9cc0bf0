// Lanes that end with weights: each target of a step counts alike, wherever its lane is played.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "actors/simulation/tiny_trainer.hpp"
#include "core/errors.hpp"
#include "tests/sharding/meshes.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {
namespace {

using testing::HasSubstr;
using testing::Not;

/// A lane's sums over its targets, divided by the loss divisor; without a weight its means.
struct LaneSums {
  double loss = 0;
  float gradient = 0;
  std::optional<double> weight{};
};

struct Setting {
  int ranks = 1;
  core::Strategy strategy = core::Strategy::ddp;
  double loss_divisor = 1;
  double clip_norm = 0;
  double loss_scale = 1;
  int microbatches = 1;  ///< that all add a lane's gradient
  bool average = true;
  core::Numerics numerics = core::Numerics::ordered;
};

struct Ended {
  StepOutcome outcome;
  float value = 0;  ///< of the parameter, which begins as 0: minus what the step's gradient was taken to be
};

core::Result<Ended> one_step(RankWorld& world, const Setting& setting, const std::vector<LaneSums>& lanes) {
  SessionOptions options;
  auto& training = options.training;
  training.strategy = setting.strategy;
  training.numerics = setting.numerics;
  training.lanes = static_cast<int>(lanes.size());
  training.microbatches = setting.microbatches;
  training.average = setting.average;
  training.loss_divisor = setting.loss_divisor;
  training.clip_norm = setting.clip_norm;
  training.optimizer = {.kind = core::OptimizerKind::sgd, .weight_decay = 0};
  if (setting.loss_scale != 1) training.loss_scaling = {core::LossScale::fixed, setting.loss_scale};
  core::ParameterSpec value{"value", {5}};
  value.unit = core::UnitIndex{0};
  auto session = TRY(Session::join(world, options, {value}));
  TRY(session->write_parameter(
      {0}, [](std::int64_t, std::span<float> values) { std::fill(values.begin(), values.end(), 0.0F); }));
  TRY(session->begin_step(1));
  for (const core::Lane lane : session->lanes()) {
    const auto& sums = lanes[static_cast<std::size_t>(lane.value)];
    TRY(session->begin_lane(lane));
    for (int m = 0; m < setting.microbatches; ++m) {
      TRY(session->begin_microbatch(m));
      TRY(session->before_use({0}));
      TRY(session->begin_backward());
      TRY(session->before_use({0}));
      TRY(session->gradient({0}))[0] += sums.gradient * static_cast<float>(session->loss_scale());
      TRY(session->gradient_ready({0}));
    }
    TRY(sums.weight ? session->end_lane(sums.loss, *sums.weight) : session->end_lane(sums.loss));
  }
  Ended ended;
  ended.outcome = TRY(session->finish_step());
  TRY(session->begin_evaluation());
  TRY(session->before_use({0}));
  ended.value = TRY(session->parameter({0}))[0];
  TRY(session->end_evaluation());
  TRY(session->leave());
  return ended;
}

Ended end_of(const Setting& setting, const std::vector<LaneSums>& lanes) {
  SimulationOptions simulation;
  simulation.ranks = {setting.ranks};
  auto outcome =
      simulate_job<Ended>(simulation, [&](SimulatedRank& rank) { return one_step(rank, setting, lanes); });
  EXPECT_EQ(problems_of(outcome.report), "");
  for (const auto& [step, value] : outcome.ranks) {
    EXPECT_EQ(value, outcome.ranks[0].value);
    EXPECT_EQ(step.loss, outcome.ranks[0].outcome.loss);
    EXPECT_EQ(step.reason, outcome.ranks[0].outcome.reason);
  }
  return outcome.ranks[0];
}

/// 60 + 1 targets of losses 0 and 20, as of two rows of chats: 20 / 61, not 10.
// Covers finish-13.
TEST(LaneWeights, MakeTargetsOfUnevenLanesCountAlike) {
  for (const int ranks : {1, 2}) {
    for (const double divisor : {1.0, 64.0, 3.0}) {
      const auto by = static_cast<float>(divisor);
      const auto ended =
          end_of({.ranks = ranks, .loss_divisor = divisor}, {{0, 61 / by, 60}, {20 / divisor, 122 / by, 1}});

      EXPECT_TRUE(ended.outcome.committed);
      EXPECT_EQ(ended.outcome.weight, 61);
      EXPECT_DOUBLE_EQ(ended.outcome.loss, 20.0 / 61);
      EXPECT_FLOAT_EQ(ended.value, -3);
      EXPECT_DOUBLE_EQ(ended.outcome.gradient_norm, 3);
    }
  }
}

// Covers finish-13.
TEST(LaneWeights, CountForAnyStrategyAndOrderOfSums) {
  const std::vector<LaneSums> lanes{{1, 7, 3}, {2, 0, 0}, {4, 9, 11}, {8, 16, 2}, {16, 0.5F, 0.25}};
  for (const auto strategy :
       {core::Strategy::ddp, core::Strategy::zero1, core::Strategy::zero2, core::Strategy::zero3}) {
    for (const auto numerics : {core::Numerics::ordered, core::Numerics::fast}) {
      const auto ended = end_of({.ranks = 3, .strategy = strategy, .numerics = numerics}, lanes);

      EXPECT_EQ(ended.outcome.weight, 16.25);
      EXPECT_DOUBLE_EQ(ended.outcome.loss, 31 / 16.25);
      EXPECT_FLOAT_EQ(ended.value, -2);
    }
  }
}

TEST(LaneWeights, ReplaceTheDivisionByMicrobatches) {
  const auto ended = end_of({.ranks = 2, .microbatches = 4}, {{6, 3, 2}, {9, 6, 1}});

  EXPECT_DOUBLE_EQ(ended.outcome.loss, 5);
  EXPECT_FLOAT_EQ(ended.value, -12) << "four times 3 + 6, over 3";
}

TEST(LaneWeights, AreAppliedBeforeGradientsAreClipped) {
  const auto ended = end_of({.clip_norm = 1, .loss_scale = 1024}, {{0, 61, 60}, {20, 122, 1}});

  EXPECT_DOUBLE_EQ(ended.outcome.gradient_norm, 3);
  EXPECT_NEAR(ended.outcome.clip_factor, 1.0 / 3, 1e-6);
  EXPECT_NEAR(ended.value, -1, 1e-6);
}

TEST(LaneWeights, LeaveSumsAsTheyAre) {
  const auto ended = end_of({.average = false}, {{0, 61, 60}, {20, 122, 1}});

  EXPECT_DOUBLE_EQ(ended.outcome.loss, 20.0 / 61);
  EXPECT_EQ(ended.value, -183);
}

/// A trainer whose lanes all have the targets that it divides by changes nothing by saying so.
TEST(LaneWeights, OfEqualLanesKeepTheUnweightedBits) {
  for (const int ranks : {1, 3}) {
    for (const int microbatches : {1, 2}) {
      std::vector<LaneSums> means, sums;
      for (int lane = 0; lane < 7; ++lane) {
        const double loss = std::exp(lane), gradient = 1 / (3.0 + lane);
        means.push_back({loss, static_cast<float>(gradient)});
        sums.push_back({loss * microbatches, static_cast<float>(gradient), 48.0 * microbatches});
      }
      Setting setting{.ranks = ranks, .clip_norm = 0.01, .microbatches = microbatches};

      const auto expected = end_of(setting, means);
      setting.loss_divisor = 48;
      const auto ended = end_of(setting, sums);

      EXPECT_EQ(ended.value, expected.value);
      EXPECT_EQ(ended.outcome.gradient_norm, expected.outcome.gradient_norm);
      EXPECT_DOUBLE_EQ(ended.outcome.loss, expected.outcome.loss);
      EXPECT_EQ(expected.outcome.weight, 7) << "without weights, the number of lanes";
    }
  }
}

// Covers finish-13.
TEST(LaneWeights, OfNoTargetAtAllRefuseTheStep) {
  for (const int ranks : {1, 2}) {
    const auto ended = end_of({.ranks = ranks, .clip_norm = 1}, {{0, 0, 0}, {0, 0, 0}});

    EXPECT_FALSE(ended.outcome.committed);
    EXPECT_THAT(ended.outcome.reason, HasSubstr("no lane of the step has a target"));
    EXPECT_EQ(ended.outcome.weight, 0);
    EXPECT_EQ(ended.outcome.loss, 0);
    EXPECT_EQ(ended.value, 0);
  }
}

TEST(LaneWeights, TooSmallToDivideByRefuseTheStep) {
  const auto ended = end_of({}, {{1, 1, 1e-300}, {1, 1, 0}});

  EXPECT_FALSE(ended.outcome.committed);
  EXPECT_THAT(ended.outcome.reason, HasSubstr("add up to 1e-300"));
  EXPECT_EQ(ended.value, 0);
}

TEST(LaneWeights, OfOnlySomeLanesRefuseTheStepEverywhere) {
  for (const int ranks : {1, 2, 3}) {
    const auto ended = end_of({.ranks = ranks}, {{1, 1, 2}, {1, 1}, {1, 1, 2}});

    EXPECT_FALSE(ended.outcome.committed);
    EXPECT_THAT(ended.outcome.reason, HasSubstr("1 of the step's lanes ended without a weight"));
    EXPECT_EQ(ended.value, 0);
  }
}

TEST(LaneWeights, AreFiniteAndNotNegative) {
  SimulationOptions simulation;
  simulation.ranks = {1};
  const auto outcome = simulate_job<bool>(simulation, [](SimulatedRank& rank) -> core::Result<bool> {
    auto session = TRY(Session::join(rank, {}, {{"value", {4}}}));
    TRY(session->begin_step(1));
    TRY(session->begin_lane({0}));
    for (const double wrong : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
      const auto ended = session->end_lane(0, wrong);
      EXPECT_FALSE(ended);
      EXPECT_EQ(ended.error().code, core::Errc::invalid_argument);
      EXPECT_THAT(ended.error().message, HasSubstr("finite weight that is not negative"));
    }
    TRY(session->before_use({0}));
    TRY(session->gradient_ready({0}));
    TRY(session->end_lane(0, 2));
    EXPECT_TRUE(TRY(session->finish_step()).committed);
    TRY(session->leave());
    return true;
  });
  EXPECT_EQ(problems_of(outcome.report), "");
  EXPECT_TRUE(outcome.ranks[0]);
}

TEST(LaneWeights, NeedADivisorThatDivides) {
  SimulationOptions simulation;
  simulation.ranks = {1};
  const auto outcome = simulate_job<bool>(simulation, [](SimulatedRank& rank) -> core::Result<bool> {
    for (const double wrong : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
      SessionOptions options;
      options.training.loss_divisor = wrong;
      const auto session = Session::join(rank, options, {{"value", {4}}});
      EXPECT_FALSE(session);
      EXPECT_THAT(session.error().message, HasSubstr("give a loss divisor above 0"));
    }
    return true;
  });
  EXPECT_TRUE(outcome.ranks[0]);
}

class WeightedTinyJobs : public testing::TestWithParam<tests::ShardingMesh> {};

struct Trained {
  std::uint64_t state = 0;
  std::vector<double> losses, norms, weights;
  friend bool operator==(const Trained&, const Trained&) = default;
};

Trained train(const tests::ShardingMesh& mesh, TinyTrainerOptions options) {
  options.weighs = true;
  auto& training = options.session.training;
  training.strategy = mesh.strategy;
  training.optimizer_instances = mesh.outer;
  training.lanes = 8;
  training.clip_norm = 0.5;
  training.bucket_elements = 64;
  SimulationOptions simulation;
  simulation.ranks = {mesh.ranks() * training.context_parallel};
  const auto outcome = simulate_job<TinyTrainerResult>(
      simulation, [&](SimulatedRank& rank) { return simulate_tiny_rank(rank, options); });
  EXPECT_EQ(problems_of(outcome.report), "");
  Trained trained;
  for (const auto& rank : outcome.ranks) {
    Trained own{rank.state_hash, {}, {}, {}};
    for (const auto& step : rank.outcomes) {
      EXPECT_TRUE(step.committed) << step.reason;
      own.losses.push_back(step.loss);
      own.norms.push_back(step.gradient_norm);
      own.weights.push_back(step.weight);
    }
    if (trained.losses.empty()) trained = own;
    EXPECT_EQ(own, trained) << "ranks agree";
  }
  EXPECT_EQ(trained.losses.size(), static_cast<std::size_t>(options.steps));
  return trained;
}

// Covers finish-13.
TEST_P(WeightedTinyJobs, HaveOneRanksBitsWithAndWithoutOverlap) {
  const auto expected = train({core::Strategy::ddp, 1, 1}, {});
  EXPECT_THAT(expected.weights, testing::Contains(Not(expected.weights[0]))) << "steps differ";
  for (const bool overlap : {true, false}) {
    TinyTrainerOptions options;
    options.session.training.overlap = overlap;

    EXPECT_EQ(train(GetParam(), options), expected);
  }
}

TEST_P(WeightedTinyJobs, HaveOneRanksBitsWithNarrowWiresAndPieces) {
  for (const int pieces : {1, 2}) {
    TinyTrainerOptions options;
    options.session.training.wire_dtype = core::DType::bf16;
    options.session.training.context_parallel = pieces;
    const auto expected = train({core::Strategy::ddp, 1, 1}, options);

    EXPECT_EQ(train(GetParam(), options), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Simulated, WeightedTinyJobs, testing::ValuesIn(tests::sharding_meshes()),
                         [](const auto& each) { return each.param.name(); });

}  // namespace
}  // namespace troupe::actors
