#include "core/program/overlap.hpp"

#include <gtest/gtest.h>

#include "tests/core/program/some_programs.hpp"

namespace troupe::core {
namespace {

/// Four children, two microbatches, one step: gathers, reductions, and those of them that ran
/// under a matrix product. Which stream they are on makes no difference.
struct Expected {
  Strategy strategy;
  OverlapCounts counts;

  friend std::ostream& operator<<(std::ostream& out, const Expected& of) {
    return out << name_of(of.strategy);
  }
};

class OverlapOf : public testing::TestWithParam<Expected> {};

// Covers unit-44.
TEST_P(OverlapOf, FourUnitsAndTwoMicrobatchesMatchesMegatron) {
  for (const bool separate : {false, true}) {
    for (const int ranks : {2, 4, 8}) {
      auto inputs = inputs_of({.strategy = GetParam().strategy, .ranks = ranks, .units = 4, .rounds = 2});
      inputs.separate_streams = separate;

      const auto program = plan_program(inputs, {0}).value();

      EXPECT_EQ(overlap_of(program), GetParam().counts) << ranks << " ranks";
    }
  }
}

TEST_P(OverlapOf, OrderedNumericsIsTheSame) {
  const auto program =
      program_of({.strategy = GetParam().strategy, .units = 4, .rounds = 2, .numerics = Numerics::ordered});

  EXPECT_EQ(overlap_of(program), GetParam().counts);
}

INSTANTIATE_TEST_SUITE_P(
    Strategies, OverlapOf,
    testing::Values(Expected{Strategy::zero1,
                             {.gathers = 4, .reductions = 4, .hidden_gathers = 3, .hidden_reductions = 3}},
                    Expected{Strategy::zero2,
                             {.gathers = 4, .reductions = 8, .hidden_gathers = 3, .hidden_reductions = 6}},
                    Expected{Strategy::zero3,
                             {.gathers = 16, .reductions = 8, .hidden_gathers = 12, .hidden_reductions = 6}}),
    testing::PrintToStringParamName());

// hsdp_defers_dp_outer_allreduce: two children and a root, three microbatches.
// Covers unit-21.
TEST(Overlap, HybridShardingReducesAcrossReplicasInLastRoundsOnly) {
  const auto counts =
      overlap_of(program_of({.strategy = Strategy::hsdp, .ranks = 4, .outer = 2, .units = 3, .rounds = 3}));

  EXPECT_EQ(counts.all_reduces, 3);
  EXPECT_EQ(counts.reductions, 9);
}

// hfsdp_reduce_scatters_dp_outer
// Covers unit-22.
TEST(Overlap, HybridFullShardingScattersAcrossReplicasInstead) {
  const auto counts =
      overlap_of(program_of({.strategy = Strategy::hfsdp, .ranks = 4, .outer = 2, .units = 3, .rounds = 3}));

  EXPECT_EQ(counts.all_reduces, 0);
  EXPECT_EQ(counts.reductions, (3 + 1) * (2 + 1));
}

/// The shards of all units are published before the first unit is gathered, on one stream.
TEST(Overlap, HybridFullShardingPublishesShardsBeforeTheFirstGather) {
  const SomeJob job{.strategy = Strategy::hfsdp, .ranks = 4, .outer = 2, .units = 3, .rounds = 3};

  const auto counts = overlap_of(program_of(job));

  EXPECT_EQ(counts.gathers, 2 * 3 * 3 + 3);
  EXPECT_EQ(counts.hidden_gathers, 2 * 3 * 2);
}

// symmetric_memory matches_default_and_profiles_nccl: two layers, m microbatches, per step.
// Covers unit-46.
TEST(Overlap, FullShardingGathersTwiceForEachReduction) {
  for (const int rounds : {1, 3}) {
    const auto counts = overlap_of(program_of({.units = 2, .rounds = rounds}));

    EXPECT_EQ(counts.reductions, 2 * rounds);
    EXPECT_EQ(counts.gathers, 4 * rounds);
  }
}

TEST(Overlap, OneSlotHidesNothing) {
  auto inputs = inputs_of({.units = 4, .rounds = 2});
  inputs.parameter_credits = 1;
  inputs.gradient_credits = 1;

  const auto counts = overlap_of(plan_program(inputs, {0}).value());

  EXPECT_EQ(counts.gathers, 16);
  EXPECT_EQ(counts.reductions, 8);
  EXPECT_EQ(counts.hidden_gathers, 0);
  EXPECT_EQ(counts.hidden_reductions, 0);
}

TEST(Overlap, WithoutItNothingIsHiddenInAnyStrategy) {
  for (const auto strategy :
       {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3, Strategy::hsdp, Strategy::hfsdp}) {
    auto inputs = inputs_of({.strategy = strategy, .ranks = 4, .rounds = 2});
    inputs.overlap = false;

    const auto program = plan_program(inputs, std::vector<int>(inputs.domains[0].sizes.size(), 0)).value();
    const auto counts = overlap_of(program);

    EXPECT_EQ(counts.hidden_gathers + counts.hidden_reductions + counts.hidden_all_reduces, 0)
        << name_of(strategy);
  }
}

}  // namespace
}  // namespace troupe::core
