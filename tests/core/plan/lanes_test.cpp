#include "core/plan/lanes.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <string>

namespace troupe::core {
namespace {

constexpr int kMostLanes = 40;
constexpr int kMostRanks = 8;

/// The tree by its definition: aligned blocks are halved; the half that has no lane drops out.
std::string expected_expression(int first, int width, int lanes) {
  if (width == 1) return std::to_string(first);
  const int half = width / 2;
  const std::string left = expected_expression(first, half, lanes);
  if (first + half >= lanes) return left;
  return "(" + left + "+" + expected_expression(first + half, half, lanes) + ")";
}

std::string expected_expression(int lanes) {
  int width = 1;
  while (width < lanes) width *= 2;
  return expected_expression(0, width, lanes);
}

void add(std::vector<std::string>& slots, TreeStep step) {
  auto& destination = slots.at(static_cast<std::size_t>(step.destination));
  destination = "(" + destination + "+" + slots.at(static_cast<std::size_t>(step.source)) + ")";
}

/// What a rank holds after it has gone through its lanes as the contract of lane_slot and merge_after says.
std::vector<std::string> partial_sums(LaneRange held, int lanes) {
  std::vector<std::string> slots;
  for (int lane = held.first; lane < held.end(); ++lane) {
    EXPECT_EQ(lane_slot(Lane{lane}, held, lanes), static_cast<int>(slots.size()));
    slots.push_back(std::to_string(lane));
    for (const TreeStep& step : merge_after(Lane{lane}, held, lanes)) {
      EXPECT_EQ(step.source + 1, static_cast<int>(slots.size()));
      EXPECT_EQ(step.destination + 2, static_cast<int>(slots.size()));
      add(slots, step);
      slots.pop_back();
    }
  }
  return slots;
}

std::string evaluate(const std::vector<LaneRange>& split) {
  std::vector<std::string> slots;
  for (const LaneRange& held : split) {
    for (const auto& partial : partial_sums(held, split.back().end())) slots.push_back(partial);
  }
  for (const TreeStep& step : finishing_program(split)) add(slots, step);
  return slots.at(0);
}

TEST(Lanes, AreSpreadContiguouslyWithOneMoreOnFirstRanks) {
  const auto split = split_lanes(8, WorldSize{3});

  ASSERT_TRUE(split);
  EXPECT_EQ(*split, (std::vector<LaneRange>{{0, 3}, {3, 3}, {6, 2}}));
}

TEST(Lanes, MoreRanksThanLanesIsAnError) {
  const auto lanes = lanes_of_rank(4, WorldSize{5}, Rank{0});

  ASSERT_FALSE(lanes);
  EXPECT_EQ(lanes.error().code, Errc::invalid_argument);
  EXPECT_EQ(
      lanes.error().message,
      "4 lanes cannot be spread over 5 data-parallel ranks: every rank needs at least one lane; start at "
      "most 4 ranks or raise the number of lanes");
}

TEST(Lanes, ARankOutsideTheJobIsAnError) {
  EXPECT_FALSE(lanes_of_rank(4, WorldSize{2}, Rank{2}));
  EXPECT_FALSE(lanes_of_rank(4, WorldSize{2}, Rank{-1}));
  EXPECT_FALSE(lanes_of_rank(4, WorldSize{0}, Rank{0}));
}

TEST(Lanes, RootsAreTheLargestAlignedBlocks) {
  EXPECT_EQ(subtree_roots({0, 8}, 8), (std::vector<LaneRange>{{0, 8}}));
  EXPECT_EQ(subtree_roots({1, 6}, 8), (std::vector<LaneRange>{{1, 1}, {2, 2}, {4, 2}, {6, 1}}));
  EXPECT_EQ(subtree_roots({3, 3}, 8), (std::vector<LaneRange>{{3, 1}, {4, 2}}));
}

TEST(Lanes, MissingLanesBehindTheLastBelongToItsRank) {
  EXPECT_EQ(subtree_roots({0, 3}, 3), (std::vector<LaneRange>{{0, 3}}));
  EXPECT_EQ(subtree_roots({4, 3}, 7), (std::vector<LaneRange>{{4, 3}}));
  EXPECT_EQ(subtree_roots({3, 3}, 6), (std::vector<LaneRange>{{3, 1}, {4, 2}}));
}

TEST(Lanes, SevenLanesPartialSumsMergeLikeBinaryCounters) {
  const LaneRange all{0, 8};

  EXPECT_TRUE(merge_after(Lane{0}, all, 8).empty());
  EXPECT_EQ(merge_after(Lane{1}, all, 8), (std::vector<TreeStep>{{0, 1}}));
  EXPECT_TRUE(merge_after(Lane{2}, all, 8).empty());
  EXPECT_EQ(merge_after(Lane{3}, all, 8), (std::vector<TreeStep>{{1, 2}, {0, 1}}));
  EXPECT_EQ(merge_after(Lane{7}, all, 8), (std::vector<TreeStep>{{2, 3}, {1, 2}, {0, 1}}));
}

TEST(Lanes, FinishingProgramOfEightLanesOnThreeRanks) {
  const auto split = split_lanes(8, WorldSize{3}).value();  // roots 0-1, 2 | 3, 4-5 | 6-7

  EXPECT_EQ(finishing_program(split), (std::vector<TreeStep>{{1, 2}, {0, 1}, {3, 4}, {0, 3}}));
}

TEST(Lanes, EverySplitIntoRanksGivesTheSameExpression) {
  for (int lanes = 1; lanes <= kMostLanes; ++lanes) {
    const std::string expected = expected_expression(lanes);
    for (int ranks = 1; ranks <= std::min(kMostRanks, lanes); ++ranks) {
      ASSERT_EQ(evaluate(split_lanes(lanes, WorldSize{ranks}).value()), expected) << lanes << " " << ranks;
    }
  }
}

TEST(Lanes, RootsOfARankAreItsFinalStack) {
  for (int lanes = 1; lanes <= kMostLanes; ++lanes) {
    for (int first = 0; first < lanes; ++first) {
      for (int count = 1; first + count <= lanes; ++count) {
        const LaneRange held{first, count};
        ASSERT_EQ(partial_sums(held, lanes).size(), subtree_roots(held, lanes).size());
      }
    }
  }
}

RC_GTEST_PROP(Lanes, EveryContiguousSplitGivesTheSameExpression, ()) {
  std::vector<LaneRange> split;
  const int ranks = *rc::gen::inRange(1, 10);
  for (int rank = 0; rank < ranks; ++rank) {
    const int first = split.empty() ? 0 : split.back().end();
    split.push_back({first, *rc::gen::inRange(1, 12)});
  }

  RC_ASSERT(evaluate(split) == expected_expression(split.back().end()));
}

RC_GTEST_PROP(Lanes, LanesDividingIntoPowersOfTwoCostOneRoot, ()) {
  const int ranks = *rc::gen::inRange(1, 64);
  const int width = 1 << *rc::gen::inRange(0, 5);

  const auto split = split_lanes(ranks * width, WorldSize{ranks}).value();
  for (const LaneRange& held : split) {
    RC_ASSERT(subtree_roots(held, ranks * width).size() == 1U);
  }
}

}  // namespace
}  // namespace troupe::core
