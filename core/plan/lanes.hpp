#pragma once

#include <span>
#include <vector>

#include "core/ids.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// Lanes are summed in one fixed binary tree, whatever the number of ranks. Its nodes are the aligned blocks
/// [k*2^h, (k+1)*2^h); when the number of lanes is not a power of two, a missing lane passes the other
/// operand through. So every split of the lanes over ranks gives the same additions, and the same bits.

/// The contiguous lanes [first, first + count).
struct LaneRange {
  int first = 0;
  int count = 0;

  int end() const { return first + count; }
  bool contains(Lane lane) const { return lane.value >= first && lane.value < end(); }
  friend bool operator==(const LaneRange&, const LaneRange&) = default;
};

/// A lane is computed in `of_lane` pieces, and each rank computes `of_rank` of them: as many ranks as the
/// quotient share the lane.
struct Pieces {
  int of_lane = 1;
  int of_rank = 1;

  friend bool operator==(const Pieces&, const Pieces&) = default;
};

/// Lanes may be computed in pieces, on one rank or several: the gradient of a piece is a summand of its
/// lane's. The lanes of one piece are summed in the tree of whole lanes, and the sums of the pieces in a tree
/// over these. So a rank with lanes of one piece adds and keeps the same as it would for whole lanes
/// (docs/decisions/0012). The leaves are numbered piece by piece: piece p of lane l is p * lanes + l.
struct PieceTree {
  int lanes = 0;
  int pieces = 1;

  int leaves() const { return lanes * pieces; }
  int piece_of(LaneRange leaf) const { return leaf.first / lanes; }
  /// One piece of these lanes.
  LaneRange leaves_of(LaneRange range, int piece) const;
  /// All pieces of these lanes: a single range if these are all lanes, otherwise one range per piece.
  std::vector<LaneRange> leaves_of(LaneRange range) const;
  /// The largest nodes of the tree within ranges returned by leaves_of().
  std::vector<LaneRange> roots_of(LaneRange leaves) const;
};

/// The lanes of a rank: contiguous, in rank order; the first `lanes % ranks` ranks have one more.
/// Errc::invalid_argument if there are more ranks than lanes.
Result<LaneRange> lanes_of_rank(int lanes, WorldSize ranks, Rank rank);
/// lanes_of_rank for all ranks.
Result<std::vector<LaneRange>> split_lanes(int lanes, WorldSize ranks);

/// slot[destination] += slot[source]
struct TreeStep {
  int destination = 0;
  int source = 0;

  friend bool operator==(const TreeStep&, const TreeStep&) = default;
};

/// The largest nodes of the tree within `range`, in lane order: the sums that a rank holding `range` can
/// compute alone. `lanes` is the number of lanes of the job.
std::vector<LaneRange> subtree_roots(LaneRange range, int lanes);

/// A rank holds its partial sums as a stack of slots, 0 at the bottom. The gradient of `lane` is computed
/// into slot `lane_slot`, then the steps of `merge_after` run in order, each adding the top slot to the one
/// below it. After the last lane of `held` the slots are subtree_roots(held, lanes).
int lane_slot(Lane lane, LaneRange held, int lanes);
std::vector<TreeStep> merge_after(Lane lane, LaneRange held, int lanes);

/// The additions that complete the tree. Slots are the subtree roots of all ranks, in lane order; `split` has
/// the lanes of each rank, which together are all lanes in order. The sum ends up in slot 0.
std::vector<TreeStep> finishing_program(std::span<const LaneRange> split);

}  // namespace troupe::core
