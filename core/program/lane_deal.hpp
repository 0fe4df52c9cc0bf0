#pragma once

#include <span>
#include <vector>

#include "core/plan/lanes.hpp"
#include "core/plan/placement.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// The lanes a rank computes, one in each round: first, first + stride, ...
struct DealtLanes {
  int first = 0;
  int stride = 1;
  int count = 0;

  friend bool operator==(const DealtLanes&, const DealtLanes&) = default;
};

/// Which rank computes which lane, by where the gradients lie between microbatches. An axis on which they are
/// partial cuts the lanes into contiguous blocks, the first ones the longer. Axes on which they are sharded,
/// the last ones, deal the lanes of a block round by round: with `width` ranks on them, the rank at place p
/// computes lane block.first + round * width + p. So what an owner receives in a round are neighbours in the
/// tree of core/plan/lanes.hpp.
///
/// A place may stand for several neighbouring ranks, its sources, which deal its lanes among themselves in
/// the same way: those whose gradients of experts one of them has. Lanes must be as many for all places then.
///
/// With several pieces to a lane that many neighbours on the innermost axis go through the same lanes, each
/// with its piece of them: the rank at coordinate i of it has piece i % pieces, and lanes by i / pieces.
class LaneDeal {
 public:
  /// Errc::invalid_argument when there are fewer lanes than ranks, sharded axes are not the last ones, lanes
  /// do not divide by places of several sources, or the innermost axis not by pieces. Errc::unavailable for
  /// several sources and several pieces.
  static Result<LaneDeal> create(int lanes, const Placements& gradients, std::vector<int> sizes,
                                 int sources = 1, int pieces = 1);

  int lanes() const { return tree_.lanes; }
  const PieceTree& tree() const { return tree_; }
  /// The leaves of the tree that ranks have of these lanes which share the first `axes` coordinates: of one
  /// piece when that is all of them, otherwise of all pieces.
  std::vector<LaneRange> leaves_of(LaneRange lanes, const std::vector<int>& coordinates,
                                   std::size_t axes) const;
  /// Of places with one source.
  DealtLanes dealt(const std::vector<int>& coordinates) const;
  /// The lanes of all ranks which share the first `axes` coordinates: a contiguous block, when none of these
  /// is of a sharded axis.
  LaneRange block(const std::vector<int>& coordinates, std::size_t axes) const;
  /// The lanes of one round of all ranks which share the first `axes` coordinates, which include those of all
  /// partial axes. Contiguous, and empty for ranks without a lane in that round.
  LaneRange round_lanes(const std::vector<int>& coordinates, std::size_t axes, int round) const;
  /// Axes along which gradients are partial; the others are sharded.
  std::size_t partial_axes() const { return partial_axes_; }

 private:
  /// Of the ranks that have the same piece.
  int place(const std::vector<int>& coordinates, std::size_t axis) const {
    return axis + 1 == sizes_.size() ? coordinates[axis] / tree_.pieces : coordinates[axis];
  }

  PieceTree tree_;
  std::vector<int> sizes_;  // in places: ranks, or of the innermost axis those that have the same piece
  std::size_t partial_axes_ = 0;
  int width_ = 1;  // places on the sharded axes
  int sources_ = 1;
};

/// Subtree roots in slots, and what is left to add so that as few as possible remain.
struct RootMerge {
  std::vector<TreeStep> steps;
  std::vector<int> roots;  ///< the slots that hold what remains, in lane order

  friend bool operator==(const RootMerge&, const RootMerge&) = default;
};

/// `pieces` are contiguous blocks of lanes that follow each other without a hole; empty ones are left out.
/// Slots are the roots of the first piece, then those of the second, and so on, as subtree_roots() gives
/// them. What remains are the roots of all pieces together.
RootMerge merge_roots(std::span<const LaneRange> pieces, int lanes);

/// The roots of some ranges of leaves, one range after the other.
std::vector<LaneRange> roots_of(std::span<const LaneRange> leaves, const PieceTree& tree);

/// As merge_roots(), of ranges of leaves in any order and with holes between them.
struct SortedMerge {
  std::vector<int> order;        ///< the slots of the roots of the ranges, in the order of the tree
  RootMerge merge;               ///< its slots are places in `order`
  std::vector<LaneRange> roots;  ///< what remains, as merge.roots
};
SortedMerge sort_and_merge(std::span<const LaneRange> leaves, const PieceTree& tree);

/// Full gradients that a rank needs which accumulates the contiguous lanes `held`, the one that is being
/// computed among them.
int accumulation_slots(LaneRange held, int lanes);

}  // namespace troupe::core
