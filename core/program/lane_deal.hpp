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
class LaneDeal {
 public:
  /// Errc::invalid_argument when there are fewer lanes than ranks, sharded axes are not the last ones, or
  /// lanes do not divide by places of several sources.
  static Result<LaneDeal> create(int lanes, const Placements& gradients, std::vector<int> sizes,
                                 int sources = 1);

  int lanes() const { return lanes_; }
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
  int lanes_ = 0;
  std::vector<int> sizes_;
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

/// Full gradients that a rank needs which accumulates the contiguous lanes `held`, the one that is being
/// computed among them.
int accumulation_slots(LaneRange held, int lanes);

}  // namespace troupe::core
