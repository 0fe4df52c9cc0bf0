#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/plan/lanes.hpp"
#include "core/plan/placement.hpp"
#include "core/program/lane_deal.hpp"
#include "core/program/tensor_class.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// Ranks of the first domain for which one of `domain` computes: of experts those of its expert-parallel
/// group, neighbours on the innermost axis.
int sources_in(const Domain& domain, const Domain& first);

/// Where the rank that stands at `coordinates` of the first domain stands in `domain`.
std::vector<int> coordinates_in(const Domain& domain, const Domain& first,
                                const std::vector<int>& coordinates);

/// A domain as a rank sees it: the lanes of all its ranks, and which of them are whose.
struct DomainLanes {
  LaneDeal deal;
  std::vector<int> coordinates;  ///< of the rank
  int sources = 1;
  /// Where gradients are partial alone: the contiguous lanes of each source, from the first one's on.
  std::vector<LaneRange> source_blocks;

  bool is_dealt_by_round() const { return deal.partial_axes() < coordinates.size(); }
  /// What this rank sums before it sends anything, of each source. Where lanes are dealt by round: in one
  /// round, a lane each.
  std::vector<LaneRange> pieces(int round) const;
};

/// `coordinates` are of domain 0. Errors as LaneDeal::create().
Result<DomainLanes> lanes_of(std::size_t domain, std::span<const Domain> domains, const Placements& gradients,
                             int lanes, const std::vector<int>& coordinates, int pieces = 1);

/// Partial sums of several sources in memory, and how they become as few as they can be: slots are the
/// sources' own stacks one after the other, each of `depth`.
struct SourceStacks {
  int depth = 1;
  int slots = 1;
  RootMerge merge;  ///< after the last round, or where lanes are dealt by round in each
};
SourceStacks source_stacks(const DomainLanes& lanes, int round);

/// Sums that wait for those of later rounds, where each round reduces gradients: a stack for each piece of
/// the lanes, one after the other. What is left when all pieces of all lanes are summed is in slot 0.
struct RestingStacks {
  PieceTree tree;
  int depth = 0;
  int slots = 1;

  /// Where roots lie that are in the order of the tree.
  std::vector<int> slots_of(std::span<const LaneRange> roots) const;
};
RestingStacks resting_stacks(const DomainLanes& lanes, int rounds);

}  // namespace troupe::core
