#include "core/program/lane_deal.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "core/errors.hpp"

namespace troupe::core {
namespace {

/// Part `part` of `parts` of a block, as lanes_of_rank() cuts all lanes.
LaneRange cut(LaneRange block, int parts, int part) {
  const int base = block.count / parts;
  const int longer = block.count % parts;
  return {.first = block.first + part * base + std::min(part, longer),
          .count = base + (part < longer ? 1 : 0)};
}

/// Walks down one node to the roots that exist and emits its additions in post-order.
class Merger {
 public:
  Merger(std::span<const LaneRange> roots, int lanes) : roots_(roots), lanes_(lanes) {}

  int sum(int first, int width) {
    const int count = std::min(first + width, lanes_) - first;
    const int slot = next_;
    CHECK(static_cast<std::size_t>(slot) < roots_.size() &&
              roots_[static_cast<std::size_t>(slot)].first == first,
          "pieces follow each other without a hole");
    if (roots_[static_cast<std::size_t>(slot)].count == count) {
      ++next_;
      return slot;
    }
    const int half = width / 2;
    const int left = sum(first, half);
    if (first + half < lanes_) steps.push_back({.destination = left, .source = sum(first + half, half)});
    return left;
  }

  std::vector<TreeStep> steps;

 private:
  std::span<const LaneRange> roots_;
  int lanes_;
  int next_ = 0;
};

}  // namespace

Result<LaneDeal> LaneDeal::create(int lanes, const Placements& gradients, std::vector<int> sizes,
                                  int sources) {
  LaneDeal deal;
  deal.lanes_ = lanes;
  deal.sizes_ = std::move(sizes);
  deal.sources_ = sources;
  std::int64_t ranks = sources;
  bool sharded = false;
  for (std::size_t axis = 0; axis < gradients.size(); ++axis) {
    ranks *= deal.sizes_[axis];
    if (gradients[axis] == Placement::flat_shard) {
      sharded = true;
      deal.width_ *= deal.sizes_[axis];
    } else if (sharded) {
      return fail(Errc::invalid_argument,
                  "gradients are sharded along axis {} and not along the axis inside it: shard the last axes",
                  axis - 1);
    } else {
      ++deal.partial_axes_;
    }
  }
  if (lanes < ranks) {
    return fail(Errc::invalid_argument,
                "{} lanes cannot be spread over {} data-parallel ranks: every rank needs at least one lane; "
                "start at most {} ranks or raise the number of lanes",
                lanes, ranks, std::max(lanes, 1));
  }
  if (sources > 1 && lanes % ranks != 0) {
    return fail(Errc::invalid_argument,
                "{} lanes do not divide by {} data-parallel ranks, of which {} share experts and go through "
                "their lanes together; use a multiple of {} lanes",
                lanes, ranks, sources, ranks);
  }
  return deal;
}

LaneRange LaneDeal::block(const std::vector<int>& coordinates, std::size_t axes) const {
  CHECK(axes <= partial_axes_, "lanes are contiguous along partial axes only");
  LaneRange block{.first = 0, .count = lanes_};
  for (std::size_t axis = 0; axis < axes; ++axis) block = cut(block, sizes_[axis], coordinates[axis]);
  return block;
}

LaneRange LaneDeal::round_lanes(const std::vector<int>& coordinates, std::size_t axes, int round) const {
  CHECK(axes >= partial_axes_, "a round is of ranks that share their partial axes");
  const LaneRange all = block(coordinates, partial_axes_);
  int place = 0;
  int together = 1;
  for (std::size_t axis = partial_axes_; axis < sizes_.size(); ++axis) {
    place = place * sizes_[axis] + (axis < axes ? coordinates[axis] : 0);
    if (axis >= axes) together *= sizes_[axis];
  }
  const int first = std::min(all.first + (round * width_ + place) * sources_, all.end());
  return {.first = first, .count = std::min(first + together * sources_, all.end()) - first};
}

DealtLanes LaneDeal::dealt(const std::vector<int>& coordinates) const {
  CHECK(sources_ == 1, "each source has lanes of its own");
  const LaneRange all = block(coordinates, partial_axes_);
  const LaneRange start = round_lanes(coordinates, sizes_.size(), 0);
  const int place = start.first - all.first;
  return {.first = start.first, .stride = width_, .count = (all.count - place + width_ - 1) / width_};
}

RootMerge merge_roots(std::span<const LaneRange> pieces, int lanes) {
  std::vector<LaneRange> roots;
  for (const LaneRange& piece : pieces) {
    for (const LaneRange& root : subtree_roots(piece, lanes)) roots.push_back(root);
  }
  RootMerge merge;
  if (roots.empty()) return merge;
  const LaneRange all{.first = roots.front().first, .count = roots.back().end() - roots.front().first};
  Merger merger(roots, lanes);
  for (const LaneRange& root : subtree_roots(all, lanes)) {
    merge.roots.push_back(
        merger.sum(root.first, static_cast<int>(std::bit_ceil(static_cast<unsigned>(root.count)))));
  }
  merge.steps = std::move(merger.steps);
  return merge;
}

int accumulation_slots(LaneRange held, int lanes) {
  int slots = 1;
  for (int lane = held.first; lane < held.end(); ++lane) {
    slots = std::max(slots, lane_slot({lane}, held, lanes) + 1);
  }
  return slots;
}

}  // namespace troupe::core
