#include "core/program/lane_deal.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <string>

namespace troupe::core {
namespace {

constexpr auto F = Placement::flat_shard;
constexpr auto P = Placement::partial;

TEST(LaneDeal, PartialAxesDealContiguouslyAsSplitLanesDoes) {
  const auto deal = LaneDeal::create(11, {P}, {4}).value();
  const auto split = split_lanes(11, {4}).value();

  for (int rank = 0; rank < 4; ++rank) {
    const auto& expected = split[static_cast<std::size_t>(rank)];
    EXPECT_EQ(deal.dealt({rank}), (DealtLanes{expected.first, 1, expected.count}));
    EXPECT_EQ(deal.block({rank}, 1), expected);
  }
}

/// lane = outer * L / O + round * I + inner
TEST(LaneDeal, ShardedAxesDealRoundByRound) {
  const auto deal = LaneDeal::create(24, {P, F}, {2, 4}).value();

  for (int outer = 0; outer < 2; ++outer) {
    for (int inner = 0; inner < 4; ++inner) {
      EXPECT_EQ(deal.dealt({outer, inner}), (DealtLanes{outer * 24 / 2 + inner, 4, 3}));
      for (int round = 0; round < 3; ++round) {
        EXPECT_EQ(deal.round_lanes({outer, inner}, 2, round),
                  (LaneRange{outer * 24 / 2 + round * 4 + inner, 1}));
      }
    }
  }
}

TEST(LaneDeal, SomeRanksHaveNoLaneInTheLastRound) {
  const auto deal = LaneDeal::create(5, {F}, {3}).value();

  EXPECT_EQ(deal.dealt({0}), (DealtLanes{0, 3, 2}));
  EXPECT_EQ(deal.dealt({2}), (DealtLanes{2, 3, 1}));
  EXPECT_EQ(deal.round_lanes({2}, 1, 1), (LaneRange{5, 0}));
}

TEST(LaneDeal, RefusesTooFewLanesAndShardingOutsidePartialAxes) {
  EXPECT_EQ(
      LaneDeal::create(5, {P, F}, {2, 3}).error().message,
      "5 lanes cannot be spread over 6 data-parallel ranks: every rank needs at least one lane; start at "
      "most 5 ranks or raise the number of lanes");
  EXPECT_EQ(LaneDeal::create(6, {F, P}, {2, 3}).error().message,
            "gradients are sharded along axis 0 and not along the axis inside it: shard the last axes");
}

RC_GTEST_PROP(LaneDeal, EveryLaneIsComputedOnce, ()) {
  const Placements gradients = *rc::gen::element(Placements{P, P}, Placements{P, F}, Placements{F, F});
  const int outer = *rc::gen::inRange(1, 5);
  const int inner = *rc::gen::inRange(1, 5);
  const int lanes = outer * inner + *rc::gen::inRange(0, 20);
  const auto deal = LaneDeal::create(lanes, gradients, {outer, inner}).value();
  std::vector<int> computed(static_cast<std::size_t>(lanes));

  for (int place = 0; place < outer * inner; ++place) {
    const auto dealt = deal.dealt({place / inner, place % inner});
    for (int i = 0; i < dealt.count; ++i) {
      ++computed.at(static_cast<std::size_t>(dealt.first + i * dealt.stride));
    }
  }

  RC_ASSERT(std::count(computed.begin(), computed.end(), 1) == lanes);
}

RC_GTEST_PROP(LaneDeal, EveryPieceOfEveryLaneIsComputedOnce, ()) {
  const Placements gradients = *rc::gen::element(Placements{P, P}, Placements{P, F}, Placements{F, F});
  const int outer = *rc::gen::inRange(1, 5);
  const int inner = *rc::gen::inRange(1, 5);
  const int pieces = *rc::gen::inRange(1, 5);
  const int lanes = outer * inner + *rc::gen::inRange(0, 20);
  const auto deal = LaneDeal::create(lanes, gradients, {outer, inner * pieces}, 1, pieces).value();
  std::vector<int> computed(static_cast<std::size_t>(deal.tree().leaves()));

  for (int place = 0; place < outer * inner * pieces; ++place) {
    const std::vector<int> at{place / (inner * pieces), place % (inner * pieces)};
    const auto dealt = deal.dealt(at);
    for (int i = 0; i < dealt.count; ++i) {
      const LaneRange lane{dealt.first + i * dealt.stride, 1};
      const auto leaves = deal.leaves_of(lane, at, 2);
      RC_ASSERT(leaves.size() == 1U);
      for (int leaf = leaves[0].first; leaf < leaves[0].end(); ++leaf)
        ++computed.at(static_cast<std::size_t>(leaf));
    }
  }

  RC_ASSERT(std::count(computed.begin(), computed.end(), 1) == std::ssize(computed));
}

TEST(LaneDeal, NeighboursShareTheirLanesAndHaveAPieceEach) {
  const auto deal = LaneDeal::create(5, {P}, {4}, 1, 2).value();

  EXPECT_EQ(deal.dealt({0}), (DealtLanes{0, 1, 3}));
  EXPECT_EQ(deal.dealt({1}), (DealtLanes{0, 1, 3}));
  EXPECT_EQ(deal.dealt({3}), (DealtLanes{3, 1, 2}));
  EXPECT_EQ(deal.leaves_of({0, 3}, {0}, 1), (std::vector<LaneRange>{{0, 3}}));
  EXPECT_EQ(deal.leaves_of({3, 2}, {3}, 1), (std::vector<LaneRange>{{8, 2}}));
  EXPECT_EQ(deal.leaves_of({0, 5}, {0}, 0), (std::vector<LaneRange>{{0, 10}}));
  EXPECT_EQ(deal.leaves_of({0, 3}, {0}, 0), (std::vector<LaneRange>{{0, 3}, {5, 3}}));
}

TEST(LaneDeal, RefusesPiecesThatDoNotFit) {
  EXPECT_EQ(LaneDeal::create(8, {F}, {6}, 1, 4).error().message,
            "4 pieces of a lane do not divide the 6 ranks of the innermost axis; choose a number from 1 that "
            "does");
  EXPECT_EQ(
      LaneDeal::create(8, {F}, {4}, 3, 2).error().message,
      "experts are distributed over 3 ranks, and each lane is cut in 2 pieces; choose two numbers of which "
      "one divides the other");
}

/// Four ranks of two lanes, whose experts two, or all four, of them share.
TEST(LaneDeal, SourcesHavePiecesOfALaneOrWholeLanes) {
  const auto two = LaneDeal::create(5, {P}, {2}, 2, 2).value();
  EXPECT_EQ(two.leaves_of({0, 3}, {0}, 1), (std::vector<LaneRange>{{0, 3}, {5, 3}}));
  EXPECT_EQ(two.block({1}, 1), (LaneRange{3, 2}));
  EXPECT_EQ(two.source_piece({0}, 1), 1);

  const auto of_four = LaneDeal::create(4, {F}, {2}, 2, 4).value();
  EXPECT_EQ(of_four.leaves_of({1, 1}, {1}, 1), (std::vector<LaneRange>{{9, 1}, {13, 1}}));
  EXPECT_EQ(of_four.source_leaf({1}, 1, 2), (LaneRange{14, 1})) << "the last piece of lane 2";

  const auto four = LaneDeal::create(4, {F}, {1}, 4, 2).value();
  std::vector<LaneRange> leaves;
  for (int source = 0; source < 4; ++source) leaves.push_back(four.source_leaf({0}, source, 1));
  EXPECT_EQ(leaves, (std::vector<LaneRange>{{2, 1}, {6, 1}, {3, 1}, {7, 1}}));
  EXPECT_EQ(
      LaneDeal::create(6, {F}, {2}, 4, 2).error().message,
      "6 lanes are not a multiple of 4 data-parallel ranks, which go through their lanes together in groups "
      "of 4 that experts are distributed over; use a multiple of 4 lanes");
}

/// The sum of a node of the tree, as an expression.
std::string node(int first, int width, int lanes) {
  if (width == 1) return std::to_string(first);
  const int half = width / 2;
  const std::string left = node(first, half, lanes);
  return first + half >= lanes ? left : "(" + left + "+" + node(first + half, half, lanes) + ")";
}

std::string sum_of_lanes(LaneRange root, int lanes) {
  int width = 1;
  while (width < root.count) width *= 2;
  return node(root.first, width, lanes);
}

RC_GTEST_PROP(MergeRoots, MakesTheUnionsRootsWithTheTreesAdditions, ()) {
  const int lanes = *rc::gen::inRange(1, 40);
  const int first = *rc::gen::inRange(0, lanes);
  std::vector<LaneRange> pieces;
  for (int at = first; at < lanes && pieces.size() < 6;) {
    const int count = std::min(*rc::gen::inRange(0, 9), lanes - at);
    pieces.push_back({at, count});
    at += count;
  }
  std::vector<std::string> slots;
  for (const auto& piece : pieces) {
    for (const auto& root : subtree_roots(piece, lanes)) slots.push_back(sum_of_lanes(root, lanes));
  }

  const auto merge = merge_roots(pieces, lanes);
  for (const auto& step : merge.steps) {
    auto& destination = slots.at(static_cast<std::size_t>(step.destination));
    destination = "(" + destination + "+" + slots.at(static_cast<std::size_t>(step.source)) + ")";
  }

  const LaneRange all{first, pieces.empty() ? 0 : pieces.back().end() - first};
  std::vector<std::string> expected;
  for (const auto& root : subtree_roots(all, lanes)) expected.push_back(sum_of_lanes(root, lanes));
  std::vector<std::string> found;
  for (const int root : merge.roots) found.push_back(slots.at(static_cast<std::size_t>(root)));
  RC_ASSERT(found == expected);
}

TEST(SortAndMerge, AddsBlocksInRankOrderInTheTreesOrder) {
  // Ranks with lanes [0, 2) and [2, 4), each of pieces 0 and 1.
  const std::vector<LaneRange> some{{0, 2}, {6, 2}, {2, 2}, {8, 2}};

  const auto found = sort_and_merge(some, {.lanes = 6, .pieces = 2});

  EXPECT_EQ(found.order, (std::vector<int>{0, 2, 1, 3}));
  EXPECT_EQ(found.merge.steps, (std::vector<TreeStep>{{0, 1}, {2, 3}}));
  EXPECT_EQ(found.merge.roots, (std::vector<int>{0, 2}));
  EXPECT_EQ(found.roots, (std::vector<LaneRange>{{0, 4}, {6, 4}}));

  const PieceTree four{.lanes = 4, .pieces = 2};
  const auto all = sort_and_merge(std::vector<LaneRange>{{0, 2}, {4, 2}, {2, 2}, {6, 2}}, four);
  EXPECT_EQ(all.merge.steps, (std::vector<TreeStep>{{0, 1}, {2, 3}, {0, 2}})) << "at last the pieces";
  EXPECT_EQ(all.roots, (std::vector<LaneRange>{{0, 8}}));

  const auto apart = sort_and_merge(std::vector<LaneRange>{{2, 2}, {4, 2}}, four);
  EXPECT_EQ(apart.merge.steps, std::vector<TreeStep>{}) << "neighbours by number belong to two pieces";
}

RC_GTEST_PROP(MergeRoots, OfAllRanksIsTheFinishingProgram, ()) {
  const int ranks = *rc::gen::inRange(1, 9);
  const int lanes = ranks + *rc::gen::inRange(0, 20);
  const auto split = split_lanes(lanes, {ranks}).value();

  const auto merge = merge_roots(split, lanes);

  RC_ASSERT(merge.steps == finishing_program(split));
  RC_ASSERT(merge.roots == std::vector<int>{0});
}

TEST(AccumulationSlots, AreTheStacksDepthWithTheLaneInWork) {
  // One buffer with one lane, two with two or three, three with four to seven: docs/decisions/0004.
  const std::vector<int> expected{1, 2, 2, 3, 3, 3, 3, 4};
  for (int count = 1; count <= 8; ++count) {
    EXPECT_EQ(accumulation_slots({0, count}, 16), expected[static_cast<std::size_t>(count - 1)]) << count;
  }
}

}  // namespace
}  // namespace troupe::core
