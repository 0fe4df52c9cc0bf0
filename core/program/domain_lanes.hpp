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

/// The number of ranks of the first domain for which one rank of `domain` computes: for experts, those of its
/// expert-parallel group, neighbours on the innermost axis.
int sources_in(const Domain& domain, const Domain& first);

/// The coordinates in `domain` of the rank at `coordinates` of the first domain.
std::vector<int> coordinates_in(const Domain& domain, const Domain& first,
                                const std::vector<int>& coordinates);

/// A domain as a rank sees it: the lanes of all its ranks, and which lanes belong to which rank.
struct DomainLanes {
  LaneDeal deal;
  std::vector<int> coordinates;  ///< of the rank
  int sources = 1;               ///< with a gradient of their own: pieces of sources_in() ranks
  /// Where gradients are only partial: the contiguous lanes of each source, from the first source on.
  std::vector<LaneRange> source_blocks;

  bool is_dealt_by_round() const { return deal.partial_axes() < coordinates.size(); }
  /// For each source, the leaves that this rank sums before it sends anything. Where lanes are dealt by
  /// round: one per source in this round.
  std::vector<LaneRange> leaves(int round) const;
};

/// `coordinates` are in domain 0. A rank's pieces are sources, one after the other. Errors as for
/// LaneDeal::create().
Result<DomainLanes> lanes_of(std::size_t domain, std::span<const Domain> domains, const Placements& gradients,
                             int lanes, const std::vector<int>& coordinates, Pieces pieces = {});

/// Partial sums of several sources in memory, and how they are merged into as few as possible: slots are the
/// sources' own stacks one after the other, each of `depth`.
struct SourceStacks {
  int depth = 1;
  int slots = 1;
  RootMerge merge;  ///< after the last round, or in each round where lanes are dealt by round
};
SourceStacks source_stacks(const DomainLanes& lanes, int round);

/// Sums that wait for those of later rounds, where each round reduces gradients: a stack for each piece of
/// the lanes, one after the other. When all pieces of all lanes are summed, the result is in slot 0.
struct RestingStacks {
  PieceTree tree;
  int depth = 0;
  int slots = 1;

  /// The slots of roots that are in tree order.
  std::vector<int> slots_of(std::span<const LaneRange> roots) const;
};
RestingStacks resting_stacks(const DomainLanes& lanes, int rounds);

}  // namespace troupe::core
