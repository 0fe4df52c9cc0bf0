#include "core/plan/placement.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace troupe::core {
namespace {

constexpr auto R = Placement::replicated;
constexpr auto P = Placement::partial;
constexpr auto F = Placement::flat_shard;

using Moves = std::vector<AxisRedistribution>;

TEST(Placement, TableOfTheStrategies) {
  EXPECT_EQ(placements_of(Strategy::ddp).value(), (StrategyPlacements{{R}, {P}, {R}}));
  EXPECT_EQ(placements_of(Strategy::zero1).value(), (StrategyPlacements{{R}, {P}, {F}}));
  EXPECT_EQ(placements_of(Strategy::zero2).value(), (StrategyPlacements{{R}, {F}, {F}}));
  EXPECT_EQ(placements_of(Strategy::zero3).value(), (StrategyPlacements{{F}, {F}, {F}}));
  EXPECT_EQ(placements_of(Strategy::hsdp).value(), (StrategyPlacements{{R, F}, {P, F}, {R, F}}));
  EXPECT_EQ(placements_of(Strategy::hfsdp).value(), (StrategyPlacements{{R, F}, {P, F}, {F, F}}));
}

TEST(Placement, SeveralOptimizerInstancesAddAnOuterAxis) {
  EXPECT_EQ(placements_of(Strategy::zero1, 2).value(), (StrategyPlacements{{R, R}, {P, P}, {R, F}}));
  EXPECT_FALSE(placements_of(Strategy::ddp, 2));
  EXPECT_FALSE(placements_of(Strategy::hsdp, 2));
}

TEST(Placement, CollectivesFollowFromTheTable) {
  EXPECT_EQ(redistribution(P, R).value(), Redistribution::all_reduce);
  EXPECT_EQ(redistribution(P, F).value(), Redistribution::reduce_scatter);
  EXPECT_EQ(redistribution(F, R).value(), Redistribution::all_gather);
  EXPECT_EQ(redistribution(R, F).value(), Redistribution::slice);
  EXPECT_EQ(redistribution(F, F).value(), Redistribution::none);
  EXPECT_FALSE(redistribution(R, P));
  EXPECT_FALSE(redistribution(F, P));
}

TEST(Placement, ReductionsGoOutwardsAndGathersInwards) {
  EXPECT_EQ(redistributions({P, P}, {R, F}).value(),
            (Moves{{1, Redistribution::reduce_scatter}, {0, Redistribution::all_reduce}}));
  EXPECT_EQ(redistributions({F, F}, {R, R}).value(),
            (Moves{{0, Redistribution::all_gather}, {1, Redistribution::all_gather}}));
  EXPECT_EQ(redistributions({P, F}, {F, F}).value(), (Moves{{0, Redistribution::reduce_scatter}}));
  EXPECT_FALSE(redistributions({P}, {R, R}));
}

// Covers uneven-6, unit-2.
TEST(Placement, TheInnermostAxisCutsFirst) {
  // Two axes of sizes 2 (outer) and 3: offset = inner * 12/3 + outer * 12/6.
  EXPECT_EQ(local_range(12, {F, F}, {2, 3}, {1, 2}).value(), (ElementRange{10, 12}));
  EXPECT_EQ(local_range(12, {F, F}, {2, 3}, {1, 0}).value(), (ElementRange{2, 4}));
  EXPECT_EQ(local_range(12, {R, F}, {2, 3}, {1, 1}).value(), (ElementRange{4, 8}));
  EXPECT_EQ(local_range(12, {R, P}, {2, 3}, {1, 1}).value(), (ElementRange{0, 12}));
}

// Covers unit-10.
TEST(Placement, WrongLocalRangesAreErrors) {
  EXPECT_FALSE(local_range(12, {F, R}, {2, 3}, {1, 1}));
  EXPECT_FALSE(local_range(12, {F}, {5}, {0}));
  EXPECT_FALSE(local_range(12, {F}, {2}, {2}));
  EXPECT_FALSE(local_range(12, {F}, {2, 3}, {1}));
}

// Covers uneven-6, unit-10.
RC_GTEST_PROP(Placement, ShardsOfTwoFlatAxesTileTheBuffer, ()) {
  const int outer = *rc::gen::inRange(1, 6);
  const int inner = *rc::gen::inRange(1, 6);
  const std::int64_t shard = *rc::gen::inRange(1, 50);
  const std::int64_t elements = shard * outer * inner;

  for (int i = 0; i < inner; ++i) {
    for (int o = 0; o < outer; ++o) {
      const auto range = local_range(elements, {F, F}, {outer, inner}, {o, i}).value();
      RC_ASSERT(range.start == i * elements / inner + o * elements / (inner * outer));
      RC_ASSERT(range.size() == shard);
    }
  }
}

TEST(Strategy, NamesComeBack) {
  for (const auto strategy :
       {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3, Strategy::hsdp, Strategy::hfsdp}) {
    EXPECT_EQ(strategy_from_name(name_of(strategy)).value(), strategy);
  }
  EXPECT_FALSE(strategy_from_name("zero4"));
}

// Covers uneven-2.
TEST(PartOf, LengthsDifferByOneWhereShardsDoNotDivide) {
  const Placements flat{Placement::flat_shard};

  EXPECT_EQ(part_of({10, 17}, flat, {3}, {0}), (ElementRange{10, 13}));
  EXPECT_EQ(part_of({10, 17}, flat, {3}, {1}), (ElementRange{13, 15}));
  EXPECT_EQ(part_of({10, 17}, flat, {3}, {2}), (ElementRange{15, 17}));
}

// Covers unit-2.
TEST(PartOf, TheInnerAxisCutsFirst) {
  const Placements both{Placement::flat_shard, Placement::flat_shard};

  EXPECT_EQ(part_of({0, 24}, both, {2, 3}, {1, 0}), (ElementRange{4, 8}));
  EXPECT_EQ(part_of({0, 24}, both, {2, 3}, {0, 2}), (ElementRange{16, 20}));
  EXPECT_EQ(part_of({0, 24}, {Placement::replicated, Placement::flat_shard}, {2, 3}, {1, 2}),
            (ElementRange{16, 24}));
}

}  // namespace
}  // namespace troupe::core
