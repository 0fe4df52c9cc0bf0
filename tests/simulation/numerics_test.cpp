#include <fmt/format.h>

#include <gtest/gtest.h>

#include <cmath>

#include "core/random.hpp"
#include "tests/simulation/scripted_job.hpp"

namespace troupe::actors {
namespace {

/// Three parameters in several buckets, one of them without weight decay; gradients that no two places share.
Script noisy_script() {
  Script script;
  script.parameters = {{"a", {7, 9}}, {"b", {31}}, {"c", {5, 5, 5}}};
  script.parameters[1].weight_decay = false;
  script.steps = 3;
  script.learning_rate = 0.01;
  auto& training = script.session.training;
  training.lanes = 4;
  training.bucket_elements = 50;
  script.initial = [](std::uint32_t p, std::size_t i) { return core::CounterRandom(p, "initial").normal(i); };
  script.gradient = [](const GradientPlace& place) {
    core::CounterRandom random(place.parameter + 10 * static_cast<std::uint64_t>(place.microbatch),
                               "gradient", place.step, place.lane);
    return random.normal(place.element);
  };
  return script;
}

void expect_all_ranks(const JobOutcome<ScriptResult>& outcome, const Values& expected) {
  ASSERT_EQ(problems_of(outcome.report), "");
  for (const auto& rank : outcome.ranks) ASSERT_EQ(rank.after.back(), expected);
}

struct NamedOptimizer {
  const char* name;
  core::OptimizerOptions options;

  friend std::ostream& operator<<(std::ostream& out, const NamedOptimizer& of) { return out << of.name; }
};

class Optimizers : public testing::TestWithParam<NamedOptimizer> {};

// Covers shard-4.
TEST_P(Optimizers, TakeAnIndependentComputationsStepsBitForBit) {
  auto script = noisy_script();
  script.session.training.optimizer = GetParam().options;
  for (int lanes : {4, 6}) {
    script.session.training.lanes = lanes;
    const auto expected = expected_values(script);
    for (int ranks : {1, 2, 3, 4}) {
      for (auto strategy : {core::Strategy::ddp, core::Strategy::zero1}) {
        script.session.training.strategy = strategy;
        expect_all_ranks(simulate_script(ranks, script), expected);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Optimizers,
    testing::Values(NamedOptimizer{"Sgd", {.kind = core::OptimizerKind::sgd, .weight_decay = 0}},
                    NamedOptimizer{"SgdMomentum",
                                   {.kind = core::OptimizerKind::sgd, .weight_decay = 0.1, .momentum = 0.9}},
                    NamedOptimizer{"Adam", {.kind = core::OptimizerKind::adam, .weight_decay = 0.1}},
                    NamedOptimizer{"Lion", {.kind = core::OptimizerKind::lion, .weight_decay = 0.1}},
                    NamedOptimizer{"AdamW",
                                   {.kind = core::OptimizerKind::adamw, .beta2 = 0.95, .weight_decay = 0.1}}),
    testing::PrintToStringParamName());

TEST(OrderedNumerics, SumsMicrobatchesUsesAndLanesInTheirOrder) {
  auto script = noisy_script();
  script.session.training.microbatches = 3;
  script.uses = [](const GradientPlace& place) { return place.parameter == 1 ? 3 : 1; };
  for (bool average : {true, false}) {
    script.session.training.average = average;
    const auto expected = expected_values(script);
    for (int ranks : {1, 2, 3}) expect_all_ranks(simulate_script(ranks, script), expected);
  }
}

// Covers unit-30.
TEST(OrderedNumerics, StepsNarrowParametersMasterValuesOnAnyRanks) {
  auto script = noisy_script();
  script.steps = 5;
  script.parameters[0].dtype = script.parameters[2].dtype = core::DType::bf16;
  const auto expected = expected_values(script);
  for (int ranks : {1, 2, 4}) {
    for (auto strategy : {core::Strategy::ddp, core::Strategy::zero1}) {
      script.session.training.strategy = strategy;
      expect_all_ranks(simulate_script(ranks, script), expected);
    }
  }
}

TEST(Clipping, ScalesEveryGradientByTheGlobalNorm) {
  Script script;
  script.parameters = {{"a", {3}}, {"b", {1}}};
  script.session.training.lanes = 2;
  script.session.training.bucket_elements = 1;
  script.session.training.clip_norm = 1;
  script.session.training.optimizer = {.kind = core::OptimizerKind::sgd, .weight_decay = 0};
  script.gradient = [](const GradientPlace&) { return 2.0F; };

  auto outcome = simulate_script(2, script);

  ASSERT_EQ(problems_of(outcome.report), "");
  const double factor = 1 / (4 + 1e-6);
  for (const auto& rank : outcome.ranks) {
    EXPECT_EQ(rank.outcomes[0].gradient_norm, 4) << "the root of four times 2 squared";
    EXPECT_EQ(rank.outcomes[0].clip_factor, factor);
    for (const auto& parameter : rank.after[0]) {
      for (float value : parameter) EXPECT_EQ(value, -(2 * static_cast<float>(factor)));
    }
  }
}

TEST(Clipping, LeavesASmallGradientAlone) {
  Script script;
  script.parameters = {{"a", {4}}};
  script.session.training.lanes = 2;
  script.session.training.clip_norm = 2;
  script.session.training.optimizer = {.kind = core::OptimizerKind::sgd, .weight_decay = 0};

  auto outcome = simulate_script(2, script);

  ASSERT_EQ(problems_of(outcome.report), "");
  EXPECT_EQ(outcome.ranks[0].outcomes[0].gradient_norm, 2);
  EXPECT_EQ(outcome.ranks[0].outcomes[0].clip_factor, 1);
}

TEST(FastNumerics, StaysWithinRoundingAndEqualOnAllRanks) {
  auto script = noisy_script();
  script.steps = 1;
  script.learning_rate = 1;
  script.initial = [](auto, auto) { return 0.0F; };
  script.session.training.lanes = 8;
  script.session.training.optimizer = {.kind = core::OptimizerKind::sgd, .weight_decay = 0};
  const auto ordered = expected_values(script);
  script.session.training.numerics = core::Numerics::fast;

  for (int ranks : {1, 2, 3, 4, 8}) {
    for (auto strategy : {core::Strategy::ddp, core::Strategy::zero1}) {
      script.session.training.strategy = strategy;
      auto outcome = simulate_script(ranks, script);
      ASSERT_EQ(problems_of(outcome.report), "");
      const auto& fast = outcome.ranks[0].after[0];
      for (const auto& rank : outcome.ranks) ASSERT_EQ(rank.after[0], fast);
      for (std::uint32_t p = 0; p < fast.size(); ++p) {
        for (std::size_t i = 0; i < fast[p].size(); ++i) {
          double magnitude = 0;
          for (int lane = 0; lane < 8; ++lane) {
            magnitude += std::abs(static_cast<double>(script.gradient({{0}, {lane}, 0, p, i}))) / 8;
          }
          // Each of two sums of 8 terms rounds at most 7 times, scaling by 1/8 is exact, and a rounding is at
          // most 2^-24 of what has been summed so far.
          ASSERT_NEAR(fast[p][i], ordered[p][i], 2 * 7 * std::ldexp(magnitude, -24));
        }
      }
    }
  }
}

/// In a round without a lane a rank sends zeros, even if its slow device has yet to clear what it sent
/// before.
TEST(FastNumerics, RankWithoutALastLaneAddsNothing) {
  for (auto strategy : {core::Strategy::zero2, core::Strategy::zero3, core::Strategy::hsdp}) {
    for (const std::uint32_t resident : {0, 2}) {
      for (const auto wire : {core::DType::f32, core::DType::bf16}) {
        Script script;
        script.parameters = {{"a", {400}}, {"b", {400}}, {"c", {400}}};
        for (auto p = resident; p < 3; ++p) script.parameters[p].unit = core::UnitIndex{p - resident};
        script.steps = 2;
        const int copies = strategy == core::Strategy::hsdp ? 2 : 1;
        auto& training = script.session.training;
        training.strategy = strategy;
        training.numerics = core::Numerics::fast;
        training.wire_dtype = wire;
        training.optimizer_instances = copies;
        training.lanes = 3 * copies;
        training.average = false;
        training.optimizer = {.kind = core::OptimizerKind::sgd, .weight_decay = 0};
        // Sums of few bits, so that any order of them is exact.
        script.gradient = [](const GradientPlace& place) {
          return static_cast<float>(1 + place.lane.value + 8 * place.parameter);
        };
        SimulationOptions simulation;
        simulation.ranks = {2 * copies};
        simulation.device.bytes_per_second = 1e8;
        simulation.fabric.latency = std::chrono::microseconds(1);
        for (int rank = 1; rank < simulation.ranks.value; rank += 2) {
          simulation.faults.push_back({.kind = SimulatedFault::Kind::slow, .rank = {rank}, .factor = 50});
        }

        const auto outcome = simulate_script(simulation, script);

        SCOPED_TRACE(
            fmt::format("{}, {} resident, {}", core::name_of(strategy), resident, core::name_of(wire)));
        expect_all_ranks(outcome, expected_values(script));
      }
    }
  }
}

/// The gradient of rank r, which plays lane r alone, is 2^r: any wrong group gives another sum.
// Covers reduce-1, finish-2, adapter-2, beyond-1.
TEST(ReductionGroups, SumEveryRankOnceWhateverNumericsAndCopies) {
  Script script;
  script.parameters = {{"a", {100}}, {"b", {300}}, {"c", {10}}};
  auto& training = script.session.training;
  training.average = false;
  training.bucket_elements = 128;
  training.optimizer = {.kind = core::OptimizerKind::sgd, .weight_decay = 0};
  script.gradient = [](const GradientPlace& place) { return std::ldexp(1.0F, place.lane.value); };
  for (auto numerics : {core::Numerics::fast, core::Numerics::ordered}) {
    for (int ranks : {1, 2, 4, 8}) {
      for (int instances : {0, 1, 2, 4}) {
        if (instances > ranks) continue;
        training.numerics = numerics;
        training.lanes = ranks;
        training.strategy = instances == 0 ? core::Strategy::ddp : core::Strategy::zero1;
        training.optimizer_instances = std::max(instances, 1);

        auto outcome = simulate_script(ranks, script);

        const auto sum = std::ldexp(1.0F, ranks) - 1;
        const auto label =
            fmt::format("{} ranks, {} instances, {}", ranks, instances, core::name_of(numerics));
        ASSERT_EQ(problems_of(outcome.report), "") << label;
        for (const auto& rank : outcome.ranks) {
          ASSERT_EQ(rank.outcomes[0].gradient_norm, std::sqrt(410.0 * sum * sum)) << label;
          for (const auto& parameter : rank.after[0]) {
            for (float value : parameter) ASSERT_EQ(value, -sum) << label;
          }
        }
      }
    }
  }
}

// Covers buffer-3.
TEST(AveragedGradients, OfOnesAreOneForDdpZero1AndInstances) {
  Script script;
  script.parameters = {{"a", {100}}, {"b", {300}}};
  auto& training = script.session.training;
  training.lanes = 4;
  training.optimizer = {.kind = core::OptimizerKind::sgd, .weight_decay = 0};
  for (auto numerics : {core::Numerics::fast, core::Numerics::ordered}) {
    for (int instances : {0, 1, 2}) {
      for (bool overlap : {false, true}) {
        training.numerics = numerics;
        training.overlap = overlap;
        training.strategy = instances == 0 ? core::Strategy::ddp : core::Strategy::zero1;
        training.optimizer_instances = std::max(instances, 1);

        auto outcome = simulate_script(4, script);

        ASSERT_EQ(problems_of(outcome.report), "");
        for (const auto& rank : outcome.ranks) {
          ASSERT_EQ(rank.after[0], (Values{std::vector<float>(100, -1), std::vector<float>(300, -1)}));
        }
      }
    }
  }
}

}  // namespace
}  // namespace troupe::actors
