#include "core/program/domain_lanes.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <set>
#include <string>

namespace troupe::core {
namespace {

constexpr auto F = Placement::flat_shard;
constexpr auto P = Placement::partial;

std::vector<Domain> domains_of(int ranks, int ep, int outer = 0) {
  if (outer == 0) return {{{GroupKind::dp_cp}, {ranks}}, {{GroupKind::edp}, {ranks / ep}, ScaleRule::expert}};
  return {
      {{GroupKind::inter_instance, GroupKind::intra_dp_cp}, {outer, ranks / outer}},
      {{GroupKind::inter_instance, GroupKind::intra_edp}, {outer, ranks / outer / ep}, ScaleRule::expert}};
}

/// The additions of the tree below a node, as text.
std::string tree(int first, int width, int lanes) {
  if (width == 1) return std::to_string(first);
  const auto left = tree(first, width / 2, lanes);
  if (first + width / 2 >= lanes) return left;
  return fmt::format("({}+{})", left, tree(first + width / 2, width / 2, lanes));
}

std::vector<std::string> trees(LaneRange range, int lanes) {
  std::vector<std::string> all;
  for (const auto& root : subtree_roots(range, lanes))
    all.push_back(
        tree(root.first, static_cast<int>(std::bit_ceil(static_cast<unsigned>(root.count))), lanes));
  return all;
}

void add(std::vector<std::string>& slots, const std::vector<TreeStep>& steps) {
  for (const auto& step : steps) {
    auto& to = slots.at(static_cast<std::size_t>(step.destination));
    auto& from = slots.at(static_cast<std::size_t>(step.source));
    to = fmt::format("({}+{})", to, from);
    from.clear();
  }
}

std::vector<std::string> at(const std::vector<std::string>& slots, const std::vector<int>& places) {
  std::vector<std::string> found;
  for (const int place : places) found.push_back(slots.at(static_cast<std::size_t>(place)));
  return found;
}

TEST(DomainLanes, HaveASourceForEachPieceOfTheRank) {
  const auto leaves_of = [](const Placements& gradients, int rank, int round) {
    const auto own =
        lanes_of(0, domains_of(4, 1), gradients, 6, {rank}, {.of_lane = 4, .of_rank = 2}).value();
    EXPECT_EQ(own.sources, 2);
    return own.leaves(round);
  };
  // Ranks 0 and 1 share lanes [0, 3), 2 and 3 the others; leaves are numbered piece by piece.
  EXPECT_EQ(leaves_of({P}, 0, 0), (std::vector<LaneRange>{{0, 3}, {6, 3}}));
  EXPECT_EQ(leaves_of({P}, 3, 0), (std::vector<LaneRange>{{12 + 3, 3}, {18 + 3, 3}}));
  // By round ranks 0 and 1 have lanes 0, 2 and 4.
  EXPECT_EQ(leaves_of({F}, 1, 1), (std::vector<LaneRange>{{12 + 2, 1}, {18 + 2, 1}}));
}

TEST(RestingStacks, HoldEachPiecesStackUntilAllIsSummed) {
  const auto stacks_of = [](int ranks, int lanes, int pieces, int rounds) {
    const auto own = lanes_of(0, domains_of(ranks * pieces, 1), {F}, lanes, {0}, {pieces}).value();
    return resting_stacks(own, rounds);
  };
  EXPECT_EQ(stacks_of(2, 8, 1, 4).slots, 2) << "after three rounds lanes [0, 4) and [4, 6)";

  const auto stacks = stacks_of(2, 8, 2, 4);
  EXPECT_EQ(stacks.slots, 4);
  EXPECT_EQ(stacks.slots_of(std::vector<LaneRange>{{0, 4}, {4, 2}, {8, 4}, {12, 2}}),
            (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(stacks.slots_of(std::vector<LaneRange>{{0, 2}, {8, 2}}), (std::vector<int>{0, 2}));
  EXPECT_EQ(stacks.slots_of(std::vector<LaneRange>{{0, 16}}), (std::vector<int>{0}));

  EXPECT_EQ(stacks_of(8, 8, 4, 1).slots, 1) << "one round sums all pieces of all lanes";
}

/// A rank's sums of all its sources' lanes are the tree's nodes in them, whatever they are.
TEST(DomainLanes, SumSourcesToTheNodesOfTheTree) {
  for (const auto& [ranks, ep] : {std::pair{2, 2}, {4, 2}, {4, 4}, {6, 2}, {6, 3}, {8, 2}, {8, 4}, {12, 4}}) {
    for (const int rounds : {1, 2, 3, 5}) {
      const int lanes = ranks * rounds;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto domains = domains_of(ranks, ep);
        const auto own = lanes_of(1, domains, {P}, lanes, {rank}).value();
        ASSERT_EQ(own.coordinates, std::vector{rank / ep});
        std::vector<std::string> slots(static_cast<std::size_t>(source_stacks(own, 0).slots));
        for (int round = 0; round < rounds; ++round) {
          const auto stacks = source_stacks(own, round);
          for (int source = 0; source < ep; ++source) {
            const auto block = own.source_blocks.at(static_cast<std::size_t>(source));
            const Lane lane{block.first + round};
            const int first = source * stacks.depth;
            slots.at(static_cast<std::size_t>(first + lane_slot(lane, block, lanes))) =
                std::to_string(lane.value);
            auto steps = merge_after(lane, block, lanes);
            for (auto& step : steps) step = {first + step.destination, first + step.source};
            add(slots, steps);
          }
        }
        const auto stacks = source_stacks(own, rounds - 1);
        add(slots, stacks.merge.steps);

        const LaneRange all = own.deal.block(own.coordinates, 1);
        EXPECT_EQ(all, (LaneRange{rank / ep * ep * rounds, ep * rounds}));
        EXPECT_EQ(at(slots, stacks.merge.roots), trees(all, lanes)) << ranks << " " << ep << " " << rounds;
      }
    }
  }
}

TEST(DomainLanes, AreNeighboursInEveryRoundWhereRoundsAreDealt) {
  for (const auto& [ranks, ep, outer] : {std::tuple{4, 2, 0}, {8, 4, 0}, {6, 2, 0}, {6, 3, 0}, {8, 2, 2}}) {
    const int rounds = 3;
    const int lanes = ranks * rounds;
    const auto domains = domains_of(ranks, ep, outer);
    const Placements gradients = outer == 0 ? Placements{F} : Placements{P, F};
    for (int round = 0; round < rounds; ++round) {
      std::multiset<int> played;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto at_place =
            outer == 0 ? std::vector{rank} : std::vector{rank / (ranks / outer), rank % (ranks / outer)};
        const auto own = lanes_of(1, domains, gradients, lanes, at_place).value();
        const auto first = lanes_of(0, domains, gradients, lanes, at_place).value();
        const auto pieces = own.leaves(round);
        ASSERT_EQ(pieces.size(), static_cast<std::size_t>(ep));
        // What the rank plays itself is that of its own place among the sources.
        const auto dealt = first.deal.dealt(first.coordinates);
        EXPECT_EQ(pieces[static_cast<std::size_t>(rank % ep)].first, dealt.first + round * dealt.stride);
        std::vector<std::string> slots;
        for (const auto& piece : pieces) slots.push_back(std::to_string(piece.first));
        const auto stacks = source_stacks(own, round);
        add(slots, stacks.merge.steps);
        EXPECT_EQ(at(slots, stacks.merge.roots), trees({pieces.front().first, ep}, lanes));
        if (rank % ep != 0) continue;
        for (const auto& piece : pieces) played.insert(piece.first);
      }
      EXPECT_EQ(played.size(), static_cast<std::size_t>(ranks));
      EXPECT_EQ(std::set(played.begin(), played.end()).size(), played.size()) << "each lane once";
    }
  }
}

TEST(DomainLanes, ThatDoNotDivideAreRefused) {
  EXPECT_EQ(
      lanes_of(1, domains_of(4, 2), {P}, 6, {0}).error().message,
      "6 lanes are not a multiple of 4 data-parallel ranks, which go through their lanes together in groups "
      "of 2 that experts are distributed over; use a multiple of 4 lanes");
}

}  // namespace
}  // namespace troupe::core
