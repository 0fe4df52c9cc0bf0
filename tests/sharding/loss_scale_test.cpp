#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "actors/planes/step/training_plan.hpp"
#include "actors/world/simulation/storage.hpp"
#include "tests/sharding/scripted_units.hpp"

namespace troupe::actors {
namespace {

using testing::HasSubstr;
using tests::ShardingMesh;

/// Grows after three steps and backs off after the second that overflows.
constexpr core::LossScaling kDynamic{.kind = core::LossScale::dynamic,
                                     .scale = 1024,
                                     .growth = 2,
                                     .interval = 3,
                                     .backoff = 0.5,
                                     .minimum = 1,
                                     .hysteresis = 2};

/// One element of one lane overflows in the steps 1, 2 and 6.
Script overflowing(const ShardingMesh& mesh) {
  auto script = tests::unit_script(mesh);
  script.steps = 12;
  script.session.training.loss_scaling = kDynamic;
  script.gradient = [noise = script.gradient](const GradientPlace& place) {
    const auto step = place.step.value;
    const bool overflows = step == 1 || step == 2 || step == 6;
    if (overflows && place.lane.value == 5 && place.parameter == 3 && place.element == 100)
      return std::numeric_limits<float>::infinity();
    return noise(place);
  };
  return script;
}

/// With a hysteresis of 2, one overflow changes nothing, the next one halves, and growth counts anew from
/// there.
const std::vector<double> kScales = {1024, 1024, 1024, 512, 512, 512, 1024, 1024, 1024, 1024, 2048, 2048};

class LossScale : public testing::TestWithParam<ShardingMesh> {};

// Covers shard-10.
TEST_P(LossScale, ThatIsAPowerOfTwoChangesNoBits) {
  auto script = tests::unit_script(GetParam());
  script.session.training.clip_norm = 0.5;
  const auto plain = tests::run(GetParam(), script);
  script.session.training.loss_scaling = {.kind = core::LossScale::fixed, .scale = 65536};

  const auto scaled = tests::run(GetParam(), script);

  ASSERT_EQ(problems_of(plain.report) + problems_of(scaled.report), "");
  for (std::size_t rank = 0; rank < scaled.ranks.size(); ++rank) {
    EXPECT_EQ(scaled.ranks[rank].after, plain.ranks[rank].after);
    for (std::size_t step = 0; step < 4; ++step) {
      const auto& with = scaled.ranks[rank].outcomes[step];
      const auto& without = plain.ranks[rank].outcomes[step];
      EXPECT_EQ(with.loss_scale, 65536);
      EXPECT_EQ(with.gradient_norm, without.gradient_norm);
      EXPECT_EQ(with.clip_factor, without.clip_factor);
      EXPECT_LT(with.clip_factor, 1);
    }
  }
}

// Covers shard-10.
TEST_P(LossScale, BacksOffAndGrowsAlikeThoughOneRankOverflows) {
  const auto script = overflowing(GetParam());

  const auto outcome = tests::run(GetParam(), script);

  ASSERT_EQ(problems_of(outcome.report), "");
  const auto expected = expected_values(script);
  for (const auto& rank : outcome.ranks) {
    EXPECT_EQ(rank.loss_scales, kScales);
    EXPECT_EQ(rank.after.back(), expected);
    for (std::size_t step = 0; step < rank.outcomes.size(); ++step) {
      const auto& seen = rank.outcomes[step];
      const bool overflows = step == 1 || step == 2 || step == 6;
      EXPECT_EQ(seen.loss_scale, kScales[step]);
      EXPECT_EQ(seen.committed, !overflows) << step;
      EXPECT_EQ(seen.nonfinite_gradients, overflows ? 1 : 0) << step;
      if (!overflows) continue;
      EXPECT_EQ(rank.after[step], rank.after[step - 1]);
    }
    EXPECT_THAT(rank.outcomes[2].reason, HasSubstr("1 gradient elements are NaN or Inf at a loss scale of"));
  }
}

/// One step before it would grow, and after one of two overflows.
// Covers shard-10.
TEST_P(LossScale, GoesOnFromACheckpointMidInterval) {
  const ShardingMesh other{core::Strategy::zero3, 1, 3};
  for (const std::int64_t saved : {5, 7}) {
    SimulatedStorage disk({});
    auto saving = overflowing(other);
    saving.steps = saving.save_after = saved;
    ASSERT_EQ(problems_of(tests::run(other, saving, &disk).report), "");
    auto going_on = overflowing(GetParam());
    going_on.restore = true;

    const auto outcome = tests::run(GetParam(), going_on, &disk);

    ASSERT_EQ(problems_of(outcome.report), "");
    for (const auto& rank : outcome.ranks) {
      EXPECT_EQ(rank.loss_scales, std::vector(kScales.begin() + saved, kScales.end()));
      EXPECT_EQ(rank.after.back(), expected_values(going_on));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, LossScale, testing::ValuesIn(tests::some_meshes()),
                         [](const auto& each) { return each.param.name(); });

TEST(LossScaleOfAJob, IsOneWhereNothingIsScaled) {
  const auto outcome = tests::run({core::Strategy::zero1, 1, 2}, tests::unit_script({}));

  ASSERT_EQ(problems_of(outcome.report), "");
  EXPECT_EQ(outcome.ranks[1].loss_scales, std::vector<double>(4, 1));
}

/// What another rank refuses is no overflow.
TEST(LossScaleOfAJob, IgnoresStepsRefusedForOtherReasons) {
  auto script = tests::unit_script({core::Strategy::zero3, 1, 2});
  script.steps = 5;
  script.session.training.loss_scaling = kDynamic;
  script.refusal = [](core::Rank rank, core::Step step) {
    return std::string(rank.value == 1 && step.value == 1 ? "the data is broken" : "");
  };

  const auto outcome = tests::run({core::Strategy::zero3, 1, 2}, script);

  ASSERT_EQ(problems_of(outcome.report), "");
  EXPECT_FALSE(outcome.ranks[0].outcomes[1].committed);
  EXPECT_EQ(outcome.ranks[0].loss_scales, (std::vector<double>{1024, 1024, 1024, 1024, 2048}));
}

TEST(LossScaleOfAJob, IsPartOfWhatRanksMustAgreeOn) {
  const auto plain = tests::unit_script({}).session.training;
  auto scaled = plain;
  scaled.loss_scaling = kDynamic;
  const auto configuration = [](const core::TrainingOptions& training) {
    return plan_training(tests::unit_script({}).parameters, training, {2}).value().configuration;
  };

  EXPECT_NE(configuration(plain), configuration(scaled));
  EXPECT_THAT(configuration(scaled), HasSubstr("loss scale dynamic from 1024"));
}

}  // namespace
}  // namespace troupe::actors
