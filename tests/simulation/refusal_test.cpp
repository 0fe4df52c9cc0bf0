#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>

#include "core/errors.hpp"
#include "tests/simulation/scripted_job.hpp"

namespace troupe::actors {
namespace {

using testing::HasSubstr;

constexpr int kRanks = 3;

/// Steps 0 and 2 are well; what is wrong with step 1 the test says.
Script three_steps() {
  Script script;
  script.parameters = {{"a", {40}}, {"b", {20}}, {"c", {30}}};
  script.steps = 3;
  script.session.training.lanes = 6;
  script.session.training.bucket_elements = 40;
  script.gradient = [](const GradientPlace& place) { return 1.0F + static_cast<float>(place.lane.value); };
  return script;
}

/// Step 1 changed nothing on any rank, and step 2 is the one that would have followed step 0.
void expect_that_step_1_was_passed_over(const JobOutcome<ScriptResult>& outcome, const Script& script) {
  ASSERT_EQ(problems_of(outcome.report), "");
  auto without = script;
  without.steps = 2;
  const auto expected = expected_values(without);
  for (const auto& rank : outcome.ranks) {
    EXPECT_TRUE(rank.outcomes[0].committed);
    EXPECT_FALSE(rank.outcomes[1].committed);
    EXPECT_TRUE(rank.outcomes[2].committed);
    EXPECT_EQ(rank.after[1], rank.after[0]);
    EXPECT_EQ(rank.after[2], expected);
  }
}

class PassedOver : public testing::TestWithParam<core::Strategy> {
 protected:
  PassedOver() {
    script.session.training.strategy = GetParam();
    if (!shards_gradients()) return;
    // The last one, which is the first in backward, has gradients in memory of its own.
    script.parameters[0].unit = core::UnitIndex{0};
    script.parameters[1].unit = core::UnitIndex{1};
  }

  static bool shards_gradients() {
    return GetParam() != core::Strategy::ddp && GetParam() != core::Strategy::zero1;
  }
  /// The rank that plays it.
  static std::size_t rank_of(std::size_t lane) {
    return shards_gradients() ? lane % kRanks : lane * kRanks / 6;
  }

  Script script = three_steps();
};

// Covers finish-16.
TEST_P(PassedOver, AStepWithNaNInOneLanesGradient) {
  auto clean = script;
  script.gradient = [good = clean.gradient](const GradientPlace& place) {
    bool bad = place.step.value == 1 && place.lane.value == 4 && place.parameter == 1 && place.element == 7;
    return bad ? std::numeric_limits<float>::quiet_NaN() : good(place);
  };

  auto outcome = simulate_script(kRanks, script);

  expect_that_step_1_was_passed_over(outcome, clean);
  for (const auto& rank : outcome.ranks) {
    EXPECT_EQ(rank.outcomes[1].reason, "1 gradient elements are NaN or Inf");
  }
}

TEST_P(PassedOver, AStepThatTheTrainerOfOneRankRefuses) {
  script.refusal = [](core::Rank rank, core::Step step) {
    return std::string(rank.value == 2 && step.value == 1 ? "the data ran out" : "");
  };

  auto outcome = simulate_script(kRanks, script);

  expect_that_step_1_was_passed_over(outcome, script);
  for (const auto& rank : outcome.ranks)
    EXPECT_EQ(rank.outcomes[1].reason, "refused by rank 2: the data ran out");
}

TEST_P(PassedOver, AStepForWhichRanksGaveOtherLearningRates) {
  script.rate = [](core::Rank rank, core::Step step) {
    return step.value == 1 && rank.value == 1 ? std::nextafter(1.0, 2.0) : 1.0;
  };

  auto outcome = simulate_script(kRanks, script);

  expect_that_step_1_was_passed_over(outcome, script);
  for (const auto& rank : outcome.ranks) {
    EXPECT_EQ(
        rank.outcomes[1].reason,
        "ranks differ in the learning rate given to begin_step(): 1 on ranks 0, 2, 1.0000000000000002 on "
        "rank 1");
  }
}

TEST_P(PassedOver, AStepWhoseLaneLeavesAParameterUnused) {
  script.uses = [](const GradientPlace& place) {
    return place.step.value == 1 && place.lane.value == 3 && place.parameter == 0 ? 0 : 1;
  };
  auto clean = three_steps();

  auto outcome = simulate_script(kRanks, script);

  expect_that_step_1_was_passed_over(outcome, clean);
  const auto who = fmt::format("refused by rank {}: ", rank_of(3));
  for (const auto& rank : outcome.ranks)
    EXPECT_THAT(rank.outcomes[1].reason, HasSubstr(who + "parameter a gave 0 of 1 gradients in lane 3"));
}

TEST_P(PassedOver, AStepWhoseGradientComesMoreOftenThanLearned) {
  script.uses = [](const GradientPlace& place) {
    return place.step.value == 1 && place.lane.value == 5 && place.parameter == 2 ? 2 : 1;
  };
  auto clean = three_steps();

  auto outcome = simulate_script(kRanks, script);

  expect_that_step_1_was_passed_over(outcome, clean);
  for (const auto& rank : outcome.ranks)
    EXPECT_THAT(rank.outcomes[1].reason, HasSubstr("parameter c gave 2 gradients in lane 5"));
}

/// What is added to memory that was reduced and cleared before the step's end.
TEST_P(PassedOver, AStepWhoseGradientReturnsAfterItsReduction) {
  script.backward_time = std::chrono::milliseconds(1);
  SimulationOptions simulation;
  simulation.ranks = {kRanks};
  simulation.seed = 1;
  // The trainer writes what is being reduced, and for this its step is refused.
  simulation.checks_order = false;
  for (const int gathered_units : {1, 2}) {
    for (const std::uint32_t parameter : {0, 1, 2}) {
      for (const int lane : {1, 2, 5}) {
        script.session.training.gathered_units = gathered_units;
        script.uses = [=](const GradientPlace& place) {
          return place.step.value == 1 && place.lane.value == lane && place.parameter == parameter ? 2 : 1;
        };
        auto clean = script;
        clean.uses = three_steps().uses;

        const auto outcome = simulate_script(simulation, script);

        SCOPED_TRACE(fmt::format("{} units, parameter {}, lane {}", gathered_units, parameter, lane));
        expect_that_step_1_was_passed_over(outcome, clean);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, PassedOver,
                         testing::Values(core::Strategy::ddp, core::Strategy::zero1, core::Strategy::zero2,
                                         core::Strategy::zero3),
                         testing::PrintToStringParamName());

// Covers beyond-7.
TEST(UnusedParameters, ByPolicyHaveTheBitsOfExplicitZeros) {
  auto unused = three_steps();
  unused.session.training.unused_parameters = core::UnusedParameters::zeros;
  auto is_unused = [](const GradientPlace& place) {
    return place.parameter == 1 || (place.parameter == 0 && (place.lane.value + place.step.value) % 2 == 1);
  };
  unused.uses = [=](const GradientPlace& place) { return is_unused(place) ? 0 : 1; };
  auto zeros = three_steps();
  zeros.gradient = [=, good = zeros.gradient](const GradientPlace& place) {
    return is_unused(place) ? 0.0F : good(place);
  };

  for (int ranks : {1, 2, 3}) {
    auto outcome = simulate_script(ranks, unused);

    ASSERT_EQ(problems_of(outcome.report), "");
    for (const auto& rank : outcome.ranks) {
      EXPECT_TRUE(rank.outcomes[2].committed);
      EXPECT_EQ(rank.after[2], expected_values(zeros));
    }
  }
}

TEST(UnusedParameters, MayComeRepeatedlyInLaterLanesThatUseThem) {
  for (const auto strategy : {core::Strategy::ddp, core::Strategy::zero3}) {
    for (const std::uint32_t parameter : {0, 1, 2}) {
      auto script = three_steps();
      script.session.training.strategy = strategy;
      script.session.training.unused_parameters = core::UnusedParameters::zeros;
      script.backward_time = std::chrono::milliseconds(1);
      script.parameters[0].unit = core::UnitIndex{0};
      script.parameters[1].unit = core::UnitIndex{1};
      script.uses = [=](const GradientPlace& place) {
        if (place.parameter != parameter) return 1;
        return (place.lane.value + place.step.value) % 3 == 0 ? 0 : 2;
      };

      const auto outcome = simulate_script(kRanks, script);

      ASSERT_EQ(problems_of(outcome.report), "");
      for (const auto& rank : outcome.ranks) {
        for (const auto& step : rank.outcomes) EXPECT_TRUE(step.committed) << step.reason;
        EXPECT_EQ(rank.after[2], expected_values(script)) << core::name_of(strategy) << " " << parameter;
      }
    }
  }
}

// Covers beyond-7.
TEST(UnusedParameters, AreRefusedByNameInTheFirstStepToo) {
  auto script = three_steps();
  script.steps = 1;
  script.uses = [](const GradientPlace& place) { return place.parameter == 1 ? 0 : 1; };

  auto outcome = simulate_script(kRanks, script);

  ASSERT_EQ(problems_of(outcome.report), "");
  for (const auto& rank : outcome.ranks) {
    EXPECT_FALSE(rank.outcomes[0].committed);
    EXPECT_THAT(rank.outcomes[0].reason, HasSubstr("parameter b"));
    EXPECT_EQ(rank.after[0][0], std::vector<float>(40, 0));
  }
}

/// Joins two ranks that disagree; returns what both were told, which must be the same.
core::Error refusal_of(const Script& ours, const Script& theirs) {
  SimulationOptions simulation;
  simulation.ranks = {2};
  auto outcome = simulate_job<bool>(simulation, [&](SimulatedRank& rank) -> core::Result<bool> {
    const auto& script = rank.rank().value == 0 ? ours : theirs;
    auto session = TRY(Session::join(rank, script.session, script.parameters));
    return session != nullptr;
  });
  EXPECT_EQ(violations_of(outcome.report), "");
  const auto& results = outcome.report.results;
  if (results[0] || results[1]) return {core::Errc::internal, "a rank joined"};
  EXPECT_EQ(results[0].error(), results[1].error());
  return results[0].error();
}

TEST(Joining, NamesTheFirstSettingInWhichTwoRanksDiffer) {
  auto theirs = three_steps();
  theirs.session.training.clip_norm = 2;

  auto error = refusal_of(three_steps(), theirs);

  EXPECT_EQ(error.code, core::Errc::mismatch);
  EXPECT_THAT(error.message, HasSubstr("rank 0 has \"clip norm 0\", rank 1 has \"clip norm 2\""));
}

TEST(Joining, NamesTheFirstDifferingParameterDespiteEqualCollectives) {
  auto ours = three_steps();
  ours.parameters = {{"a", {40}}, {"b", {8}}, {"c", {16}}};
  auto theirs = ours;
  theirs.parameters = {{"a", {40}}, {"b", {4, 2}}, {"c", {16}}};

  auto error = refusal_of(ours, theirs);

  EXPECT_EQ(error.code, core::Errc::mismatch);
  EXPECT_THAT(error.message, HasSubstr("entry 1: rank 0 has \"parameter b f32 [8]"));
  EXPECT_THAT(error.message, HasSubstr("the other has \"parameter b f32 [4,2]"));
}

TEST(Joining, RefusesAModelWithOneParameterMore) {
  auto theirs = three_steps();
  theirs.parameters.push_back({"d", {5}});

  auto error = refusal_of(three_steps(), theirs);

  EXPECT_EQ(error.code, core::Errc::mismatch);
  EXPECT_THAT(error.message, HasSubstr("\"parameter"));
}

TEST(Joining, NamesTheFirstDifferenceOfOversizedPlans) {
  auto ours = three_steps();
  ours.session.training.bucket_elements = 10'000;
  ours.parameters.clear();
  for (int i = 0; i < 3000; ++i) {
    ours.parameters.push_back({fmt::format("{:04}{}", i, std::string(400, '.')), {8}});
  }
  auto theirs = ours;
  theirs.parameters[2345].shape = {4, 2};

  auto error = refusal_of(ours, theirs);

  EXPECT_EQ(error.code, core::Errc::mismatch);
  EXPECT_THAT(error.message, HasSubstr("rank 1 plans another step than rank 0"));
  EXPECT_THAT(error.message, HasSubstr("entry 2345: rank 0 has \"parameter 2345."));
  EXPECT_THAT(error.message, HasSubstr(" f32 [4,2]"));
}

}  // namespace
}  // namespace troupe::actors
