#include "core/program/lane_deal.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>

#include "core/errors.hpp"

namespace troupe::core {
namespace {

/// Part `part` of `parts` of a block, cut like the lanes in lanes_of_rank().
LaneRange cut(LaneRange block, int parts, int part) {
  const int base = block.count / parts;
  const int longer = block.count % parts;
  return {.first = block.first + part * base + std::min(part, longer),
          .count = base + (part < longer ? 1 : 0)};
}

/// Walks down from one node to the existing roots and emits its additions in post-order.
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

Result<LaneDeal> LaneDeal::create(int lanes, const Placements& gradients, std::vector<int> sizes, int sources,
                                  int pieces) {
  if (pieces < 1 || sizes.empty() || std::int64_t{sizes.back()} * sources % pieces != 0) {
    return fail(
        Errc::invalid_argument,
        "{} pieces of a lane do not divide the {} ranks of the innermost axis; choose a number from 1 "
        "that does",
        pieces, sizes.empty() ? 0 : std::int64_t{sizes.back()} * sources);
  }
  LaneDeal deal;
  deal.tree_ = {.lanes = lanes, .pieces = pieces};
  deal.own_pieces_ = std::min(sources, pieces);
  if (pieces % deal.own_pieces_ != 0 || sources % deal.own_pieces_ != 0) {
    return fail(
        Errc::invalid_argument,
        "experts are distributed over {} ranks, and each lane is cut in {} pieces; choose two numbers "
        "of which one divides the other",
        sources, pieces);
  }
  deal.lane_sources_ = sources / deal.own_pieces_;
  deal.sizes_ = std::move(sizes);
  deal.sizes_.back() /= deal.sharing();
  std::int64_t ranks = deal.lane_sources_;
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
  if (deal.lane_sources_ > 1 && lanes % ranks != 0) {
    return fail(
        Errc::invalid_argument,
        "{} lanes are not a multiple of {} data-parallel ranks, which go through their lanes together in "
        "groups of {} that experts are distributed over; use a multiple of {} lanes",
        lanes, ranks, sources, ranks);
  }
  return deal;
}

LaneRange LaneDeal::block(const std::vector<int>& coordinates, std::size_t axes) const {
  CHECK(axes <= partial_axes_, "lanes are contiguous along partial axes only");
  LaneRange block{.first = 0, .count = lanes()};
  for (std::size_t axis = 0; axis < axes; ++axis) block = cut(block, sizes_[axis], place(coordinates, axis));
  return block;
}

std::vector<LaneRange> LaneDeal::leaves_of(LaneRange lanes, const std::vector<int>& coordinates,
                                           std::size_t axes) const {
  if (axes < sizes_.size()) return tree_.leaves_of(lanes);
  if (own_pieces_ == tree_.pieces) return tree_.leaves_of(lanes);
  std::vector<LaneRange> found;
  for (int piece = 0; piece < own_pieces_; ++piece)
    found.push_back(tree_.leaves_of(lanes, first_piece(coordinates) + piece));
  return found;
}

LaneRange LaneDeal::source_leaf(const std::vector<int>& coordinates, int source, int round) const {
  const LaneRange all = round_lanes(coordinates, coordinates.size(), round);
  const int lane = source / own_pieces_;
  const LaneRange own{.first = all.first + lane, .count = lane < all.count ? 1 : 0};
  return tree_.leaves_of(own, source_piece(coordinates, source));
}

LaneRange LaneDeal::round_lanes(const std::vector<int>& coordinates, std::size_t axes, int round) const {
  CHECK(axes >= partial_axes_, "the ranks of a round share their partial axes");
  const LaneRange all = block(coordinates, partial_axes_);
  int at = 0;
  int together = 1;
  for (std::size_t axis = partial_axes_; axis < sizes_.size(); ++axis) {
    at = at * sizes_[axis] + (axis < axes ? place(coordinates, axis) : 0);
    if (axis >= axes) together *= sizes_[axis];
  }
  const int first = std::min(all.first + (round * width_ + at) * lane_sources_, all.end());
  return {.first = first, .count = std::min(first + together * lane_sources_, all.end()) - first};
}

DealtLanes LaneDeal::dealt(const std::vector<int>& coordinates) const {
  CHECK(lane_sources_ == 1, "each source has lanes of its own");
  const LaneRange all = block(coordinates, partial_axes_);
  const LaneRange start = round_lanes(coordinates, sizes_.size(), 0);
  const int at = start.first - all.first;
  return {.first = start.first, .stride = width_, .count = (all.count - at + width_ - 1) / width_};
}

std::vector<LaneRange> roots_of(std::span<const LaneRange> leaves, const PieceTree& tree) {
  std::vector<LaneRange> roots;
  roots.reserve(leaves.size());
  for (const LaneRange& range : leaves) {
    if (range.count == 1) {
      roots.push_back(range);
      continue;
    }
    for (const LaneRange& root : tree.roots_of(range)) roots.push_back(root);
  }
  return roots;
}

RootMerge merge_roots(std::span<const LaneRange> pieces, int lanes) {
  const auto roots = roots_of(pieces, {.lanes = lanes, .pieces = 1});
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

SortedMerge sort_and_merge(std::span<const LaneRange> leaves, const PieceTree& tree) {
  const auto given = roots_of(leaves, tree);
  SortedMerge found;
  found.order.resize(given.size());
  std::iota(found.order.begin(), found.order.end(), 0);
  std::sort(found.order.begin(), found.order.end(), [&](int a, int b) {
    return given[static_cast<std::size_t>(a)].first < given[static_cast<std::size_t>(b)].first;
  });
  std::vector<LaneRange> run;  // contiguous lanes of one piece
  int first = 0;               // the number of the piece's first leaf
  const auto close = [&](std::size_t end) {
    const auto slot = static_cast<int>(end - run.size());
    const auto merge = merge_roots(run, tree.lanes);
    for (const auto& [destination, source] : merge.steps)
      found.merge.steps.push_back({.destination = slot + destination, .source = slot + source});
    for (const int root : merge.roots) found.merge.roots.push_back(slot + root);
    const LaneRange all{.first = run.front().first, .count = run.back().end() - run.front().first};
    for (const LaneRange& root : subtree_roots(all, tree.lanes))
      found.roots.push_back({.first = first + root.first, .count = root.count});
    run.clear();
  };
  for (std::size_t i = 0; i < given.size(); ++i) {
    const LaneRange& root = given[static_cast<std::size_t>(found.order[i])];
    if (root.count == tree.leaves()) {
      found.merge.roots = {0};
      found.roots = {root};
      return found;
    }
    const int own = tree.piece_of(root) * tree.lanes;
    if (!run.empty() && (own != first || run.back().end() != root.first - own)) close(i);
    first = own;
    run.push_back({.first = root.first - own, .count = root.count});
  }
  if (!run.empty()) close(given.size());
  const bool is_all = std::ssize(found.roots) == tree.pieces &&
                      std::all_of(found.roots.begin(), found.roots.end(),
                                  [&](const LaneRange& root) { return root.count == tree.lanes; });
  if (!is_all || tree.pieces == 1) return found;
  std::vector<LaneRange> each;
  for (int piece = 0; piece < tree.pieces; ++piece) each.push_back({.first = piece, .count = 1});
  for (const auto& [destination, source] : merge_roots(each, tree.pieces).steps) {
    found.merge.steps.push_back({found.merge.roots[static_cast<std::size_t>(destination)],
                                 found.merge.roots[static_cast<std::size_t>(source)]});
  }
  found.merge.roots = {found.merge.roots.front()};
  found.roots = {{.first = 0, .count = tree.leaves()}};
  return found;
}

int accumulation_slots(LaneRange held, int lanes) {
  int slots = 1;
  for (int lane = held.first; lane < held.end(); ++lane) {
    slots = std::max(slots, lane_slot({lane}, held, lanes) + 1);
  }
  return slots;
}

}  // namespace troupe::core
