#include "core/program/domain_lanes.hpp"

#include <algorithm>
#include <functional>
#include <numeric>

#include "core/errors.hpp"

namespace troupe::core {
namespace {

int ranks_of(const Domain& domain) {
  return std::accumulate(domain.sizes.begin(), domain.sizes.end(), 1, std::multiplies<>());
}

}  // namespace

int sources_in(const Domain& domain, const Domain& first) {
  return std::max(1, ranks_of(first) / std::max(1, ranks_of(domain)));
}

std::vector<int> coordinates_in(const Domain& domain, const Domain& first,
                                const std::vector<int>& coordinates) {
  auto found = coordinates;
  if (!found.empty()) found.back() /= sources_in(domain, first);
  return found;
}

std::vector<LaneRange> DomainLanes::leaves(int round) const {
  std::vector<LaneRange> found;
  for (int source = 0; source < sources; ++source) {
    found.push_back(is_dealt_by_round()
                        ? deal.source_leaf(coordinates, source, round)
                        : deal.tree().leaves_of(source_blocks[static_cast<std::size_t>(source)],
                                                deal.source_piece(coordinates, source)));
  }
  return found;
}

Result<DomainLanes> lanes_of(std::size_t domain, std::span<const Domain> domains, const Placements& gradients,
                             int lanes, const std::vector<int>& coordinates, Pieces pieces) {
  const Domain& own = domains[domain];
  const int ranks = sources_in(own, domains[0]);
  DomainLanes found{.deal = {},
                    .coordinates = coordinates_in(own, domains[0], coordinates),
                    .sources = ranks * pieces.of_rank,
                    .source_blocks = {}};
  found.deal = TRY(LaneDeal::create(lanes, gradients, own.sizes, found.sources, pieces.of_lane));
  if (found.is_dealt_by_round()) return found;
  const auto first =
      TRY(LaneDeal::create(lanes, gradients, domains[0].sizes, pieces.of_rank, pieces.of_lane));
  auto rank = coordinates;
  rank.back() = rank.back() / ranks * ranks;
  for (int i = 0; i < ranks; ++i, ++rank.back()) {
    found.source_blocks.insert(found.source_blocks.end(), static_cast<std::size_t>(pieces.of_rank),
                               first.block(rank, rank.size()));
  }
  return found;
}

SourceStacks source_stacks(const DomainLanes& lanes, int round) {
  SourceStacks stacks;
  const PieceTree& tree = lanes.deal.tree();
  const auto leaves = lanes.leaves(round);
  // For each position among the roots of all sources, the root's slot.
  std::vector<int> slot_of;
  for (const LaneRange& block : lanes.source_blocks)
    stacks.depth = std::max(stacks.depth, accumulation_slots(block, tree.lanes));
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const auto roots = static_cast<int>(tree.roots_of(leaves[i]).size());
    for (int root = 0; root < roots; ++root) slot_of.push_back(static_cast<int>(i) * stacks.depth + root);
  }
  stacks.slots = stacks.depth * lanes.sources;
  auto [order, merge, roots] = sort_and_merge(leaves, tree);
  stacks.merge = std::move(merge);
  const auto slot = [&, &places = order](int place) {
    return slot_of[static_cast<std::size_t>(places[static_cast<std::size_t>(place)])];
  };
  for (TreeStep& step : stacks.merge.steps) step = {slot(step.destination), slot(step.source)};
  for (int& root : stacks.merge.roots) root = slot(root);
  return stacks;
}

std::vector<int> RestingStacks::slots_of(std::span<const LaneRange> roots) const {
  std::vector<int> found;
  int piece = -1, in_stack = 0;
  for (const LaneRange& root : roots) {
    in_stack = tree.piece_of(root) == piece ? in_stack + 1 : 0;
    piece = tree.piece_of(root);
    found.push_back(piece * depth + in_stack);
  }
  return found;
}

RestingStacks resting_stacks(const DomainLanes& lanes, int rounds) {
  const auto axes = lanes.deal.partial_axes();
  const LaneRange held = lanes.deal.block(lanes.coordinates, axes);
  RestingStacks stacks{.tree = lanes.deal.tree()};
  // The sums kept after a round are the roots of all lanes so far.
  for (int round = 0; round < rounds; ++round) {
    const int end = lanes.deal.round_lanes(lanes.coordinates, axes, round).end();
    const LaneRange summed{.first = held.first, .count = end - held.first};
    const auto roots = roots_of(stacks.tree.leaves_of(summed), stacks.tree);
    const bool is_all = summed.count == stacks.tree.lanes;
    const int pieces = is_all ? 1 : stacks.tree.pieces;
    const int depth = static_cast<int>(roots.size()) / pieces;
    if (!is_all) stacks.depth = std::max(stacks.depth, depth);
    stacks.slots = std::max(stacks.slots, pieces * depth);
  }
  return stacks;
}

}  // namespace troupe::core
