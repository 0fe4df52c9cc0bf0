#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/sharding/scripted_units.hpp"

namespace troupe::actors {
namespace {

using tests::ShardingMesh;

/// Gradients are f32 and travel as bf16.
class NarrowWire : public testing::TestWithParam<ShardingMesh> {
 protected:
  static Script script() {
    auto script = tests::unit_script(GetParam());
    script.session.training.wire_dtype = core::DType::bf16;
    return script;
  }

  static void expect_values(const Script& job) {
    const auto outcome = tests::run(GetParam(), job);
    ASSERT_EQ(problems_of(outcome.report), "");
    for (const auto& rank : outcome.ranks) EXPECT_EQ(rank.after.back(), expected_values(job));
  }
};

// Covers shard-9.
TEST_P(NarrowWire, BringsTheSumOfOnceRoundedLanes) {
  auto wide = script();
  wide.session.training.wire_dtype = core::DType::f32;
  ASSERT_NE(expected_values(script()), expected_values(wide));

  for (const std::int64_t staging : {0, 37}) {
    for (const bool overlap : {true, false}) {
      auto job = script();
      job.session.training.staging_elements = staging;
      job.session.training.overlap = overlap;
      expect_values(job);
    }
  }
}

TEST_P(NarrowWire, RoundsALaneAfterAllItsMicrobatches) {
  if (GetParam().strategy != core::Strategy::ddp && GetParam().strategy != core::Strategy::zero1)
    GTEST_SKIP();
  auto job = script();
  job.session.training.microbatches = 3;
  expect_values(job);
}

// Covers buffer-13.
TEST_P(NarrowWire, BringsNarrowParametersMainGradientsInF32) {
  auto job = script();
  for (auto& parameter : job.parameters) parameter.dtype = core::DType::bf16;
  expect_values(job);
}

/// Sums of so few bits are exact in bf16, wherever they are rounded, so a rank that summed a part twice, late
/// or not at all is found out.
TEST_P(NarrowWire, LosesNothingOfSmallWholeNumbersInFastNumerics) {
  for (const std::int64_t staging : {0, 37}) {
    auto job = script();
    job.session.training.numerics = core::Numerics::fast;
    job.session.training.staging_elements = staging;
    job.gradient = [noise = job.gradient](const GradientPlace& place) {
      return std::round(std::clamp(noise(place) * 2, -3.0F, 3.0F));
    };
    expect_values(job);
  }
}

/// Finite in f32 and Inf in bf16: no rank takes the step.
TEST_P(NarrowWire, ThatOverflowsEndsTheStepOnAllRanks) {
  auto job = script();
  job.session.training.loss_scaling = {.kind = core::LossScale::fixed, .scale = 1};
  job.gradient = [noise = job.gradient](const GradientPlace& place) {
    const bool overflows = place.step.value == 1 && place.lane.value == 5 && place.parameter == 3;
    return overflows && place.element == 100 ? 3.4e38F : noise(place);
  };

  const auto outcome = tests::run(GetParam(), job);

  ASSERT_EQ(problems_of(outcome.report), "");
  for (const auto& rank : outcome.ranks) {
    for (std::size_t step = 0; step < rank.outcomes.size(); ++step) {
      EXPECT_EQ(rank.outcomes[step].committed, step != 1);
      EXPECT_EQ(rank.outcomes[step].nonfinite_gradients, step == 1 ? 1 : 0);
    }
    EXPECT_EQ(rank.after.back(), expected_values(job));
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, NarrowWire, testing::ValuesIn(tests::sharding_meshes()),
                         [](const auto& each) { return each.param.name(); });

/// The norm is that of what all ranks get, which the owner has rounded after it summed.
TEST(NarrowWireOfAJob, MeasuresInFastNumericsWhatArrives) {
  const ShardingMesh mesh{core::Strategy::ddp, 1, 2};
  auto job = tests::unit_script(mesh);
  auto& training = job.session.training;
  training.numerics = core::Numerics::fast;
  training.wire_dtype = core::DType::bf16;
  training.lanes = 2;
  job.steps = 1;
  double squares = 0;
  for (std::uint32_t p = 0; p < job.parameters.size(); ++p) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(job.parameters[p].elements()); ++i) {
      const auto sent = [&](int lane) {
        return rounded(core::DType::bf16, job.gradient({{0}, {lane}, 0, p, i}) * 0.5F);
      };
      const double gradient = rounded(core::DType::bf16, sent(0) + sent(1));
      squares += gradient * gradient;
    }
  }

  const auto outcome = tests::run(mesh, job);

  ASSERT_EQ(problems_of(outcome.report), "");
  for (const auto& rank : outcome.ranks) EXPECT_DOUBLE_EQ(rank.outcomes[0].gradient_norm, std::sqrt(squares));
}

TEST(NarrowWireOfAJob, IsPartOfWhatRanksMustAgreeOn) {
  const auto wide = tests::unit_script({}).session.training;
  auto narrow = wide;
  narrow.wire_dtype = core::DType::bf16;
  const auto parameters = tests::unit_script({}).parameters;

  EXPECT_NE(plan_training(parameters, wide, {2}).value().configuration,
            plan_training(parameters, narrow, {2}).value().configuration);
}

}  // namespace
}  // namespace troupe::actors
