#pragma once

#include <span>
#include <vector>

#include "core/plan/lanes.hpp"
#include "core/plan/placement.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// The lanes that a rank computes, one per round: first, first + stride, ...
struct DealtLanes {
  int first = 0;
  int stride = 1;
  int count = 0;

  friend bool operator==(const DealtLanes&, const DealtLanes&) = default;
};

/// Which rank computes which lane, given where the gradients are between microbatches. An axis on which they
/// are partial cuts the lanes into contiguous blocks, of which the longer ones come first. Axes on which they
/// are sharded, the last ones, deal the lanes of a block round by round: with `width` ranks on them, the rank
/// at place p computes lane block.first + round * width + p. So the lanes that an owner receives in a round
/// are neighbours in the tree of core/plan/lanes.hpp.
///
/// A place may stand for several neighbouring ranks, its sources, which deal its lanes among themselves in
/// the same way: the ranks whose expert gradients one of them has. All places must then have equally many
/// lanes.
///
/// With several pieces per lane, that many neighbours on the innermost axis process the same lanes, each its
/// own piece: the rank at coordinate i of the axis has piece i % pieces, and lanes by i / pieces. Sources of
/// a place are neighbours on this axis too, so they have several pieces of the same lanes, or, when there are
/// more of them than pieces, all pieces of several lanes.
class LaneDeal {
 public:
  /// Errc::invalid_argument if there are fewer lanes than ranks, sharded axes are not the last ones, places
  /// of several lanes do not divide the lanes, pieces do not divide the innermost axis, or neither of sources
  /// and pieces divides the other.
  static Result<LaneDeal> create(int lanes, const Placements& gradients, std::vector<int> sizes,
                                 int sources = 1, int pieces = 1);

  int lanes() const { return tree_.lanes; }
  const PieceTree& tree() const { return tree_; }
  /// The leaves, for these lanes, held by the ranks that share the first `axes` coordinates: those of the
  /// place's own pieces if it is a single place, otherwise of all pieces.
  std::vector<LaneRange> leaves_of(LaneRange lanes, const std::vector<int>& coordinates,
                                   std::size_t axes) const;
  /// The leaf, one of those in each round, of a place's source; where lanes are dealt by round.
  LaneRange source_leaf(const std::vector<int>& coordinates, int source, int round) const;
  /// The piece that a place's source has.
  int source_piece(const std::vector<int>& coordinates, int source) const {
    return first_piece(coordinates) + source % own_pieces_;
  }
  /// Pieces of each lane that a place has.
  int own_pieces() const { return own_pieces_; }
  /// For places with one source.
  DealtLanes dealt(const std::vector<int>& coordinates) const;
  /// The lanes of all ranks that share the first `axes` coordinates: a contiguous block, if none of these
  /// coordinates is on a sharded axis.
  LaneRange block(const std::vector<int>& coordinates, std::size_t axes) const;
  /// The lanes, in one round, of all ranks that share the first `axes` coordinates, which include those of
  /// all partial axes. Contiguous; empty for ranks without a lane in that round.
  LaneRange round_lanes(const std::vector<int>& coordinates, std::size_t axes, int round) const;
  /// Axes along which gradients are partial; the others are sharded.
  std::size_t partial_axes() const { return partial_axes_; }

 private:
  /// Neighbours on the innermost axis that share their lanes.
  int sharing() const { return tree_.pieces / own_pieces_; }
  /// Among the places that have the same pieces.
  int place(const std::vector<int>& coordinates, std::size_t axis) const {
    return axis + 1 == sizes_.size() ? coordinates[axis] / sharing() : coordinates[axis];
  }
  int first_piece(const std::vector<int>& coordinates) const {
    return coordinates.back() % sharing() * own_pieces_;
  }

  PieceTree tree_;
  std::vector<int> sizes_;  // in places; on the innermost axis, those that have the same pieces
  std::size_t partial_axes_ = 0;
  int width_ = 1;         // places on the sharded axes
  int lane_sources_ = 1;  // sources of a place with lanes of their own
  int own_pieces_ = 1;
};

/// Subtree roots in slots, and the additions that leave as few of them as possible.
struct RootMerge {
  std::vector<TreeStep> steps;
  std::vector<int> roots;  ///< the slots of the remaining sums, in lane order

  friend bool operator==(const RootMerge&, const RootMerge&) = default;
};

/// `pieces` are contiguous blocks of lanes that follow each other without gaps; empty ones are skipped. Slots
/// are the roots of the first piece, then those of the second, and so on, as returned by subtree_roots(). The
/// remaining sums are the roots of all pieces together.
RootMerge merge_roots(std::span<const LaneRange> pieces, int lanes);

/// The roots of several ranges of leaves, one range after the other.
std::vector<LaneRange> roots_of(std::span<const LaneRange> leaves, const PieceTree& tree);

/// Like merge_roots(), for ranges of leaves in any order and with gaps between them.
struct SortedMerge {
  std::vector<int> order;        ///< the slots of the ranges' roots, in tree order
  RootMerge merge;               ///< its slots are indices in `order`
  std::vector<LaneRange> roots;  ///< the remaining sums, like merge.roots
};
SortedMerge sort_and_merge(std::span<const LaneRange> leaves, const PieceTree& tree);

/// The number of full gradients needed by a rank that accumulates the contiguous lanes `held`, including the
/// gradient being computed.
int accumulation_slots(LaneRange held, int lanes);

}  // namespace troupe::core
