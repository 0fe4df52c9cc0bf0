#include "core/plan/lanes.hpp"

#include <algorithm>
#include <bit>

#include "core/errors.hpp"

namespace troupe::core {
namespace {

int tree_width(int lanes) {
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(lanes)));
}

template <typename Visit>
void visit_roots(LaneRange range, int lanes, Visit visit) {
  CHECK(range.first >= 0 && range.count >= 0 && range.end() <= lanes, "a range of lanes lies in the job");
  // A range that ends with the last lane also holds the missing lanes after it.
  const int end = range.end() == lanes ? tree_width(lanes) : range.end();
  for (int first = range.first; first < range.end();) {
    int width = 1;
    while (first % (2 * width) == 0 && first + 2 * width <= end) width *= 2;
    visit(LaneRange{.first = first, .count = std::min(first + width, range.end()) - first});
    first += width;
  }
}

int root_count(LaneRange range, int lanes) {
  int count = 0;
  visit_roots(range, lanes, [&](LaneRange) { ++count; });
  return count;
}

/// Walks the tree from the top and emits its additions in post-order, stopping at roots that already exist.
/// Roots are visited in lane order, so the slot of each is the number of those visited before it.
class Finisher {
 public:
  Finisher(std::span<const LaneRange> roots, int lanes) : roots_(roots), lanes_(lanes) {}

  /// The slot that holds the sum of the existing lanes in [first, first + width).
  int sum(int first, int width) {
    const int count = std::min(first + width, lanes_) - first;
    const int slot = next_slot_;
    CHECK(static_cast<std::size_t>(slot) < roots_.size(), "the ranks hold all lanes");
    const LaneRange& root = roots_[static_cast<std::size_t>(slot)];
    CHECK(root.first == first, "the lanes of the ranks follow each other without a hole");
    if (root.count == count) {
      ++next_slot_;
      return slot;
    }
    const int half = width / 2;
    const int left = sum(first, half);
    if (first + half < lanes_) steps_.push_back({.destination = left, .source = sum(first + half, half)});
    return left;
  }

  std::vector<TreeStep> take_steps() { return std::move(steps_); }

 private:
  std::span<const LaneRange> roots_;
  int lanes_;
  int next_slot_ = 0;
  std::vector<TreeStep> steps_;
};

}  // namespace

LaneRange PieceTree::leaves_of(LaneRange range, int piece) const {
  CHECK(piece >= 0 && piece < pieces, "a piece is one of the lane's");
  return {.first = piece * lanes + range.first, .count = range.count};
}

std::vector<LaneRange> PieceTree::leaves_of(LaneRange range) const {
  if (range.count == lanes) return {{.first = 0, .count = leaves()}};
  std::vector<LaneRange> found;
  for (int piece = 0; piece < pieces; ++piece) found.push_back(leaves_of(range, piece));
  return found;
}

std::vector<LaneRange> PieceTree::roots_of(LaneRange range) const {
  if (range.count == leaves()) return {range};
  if (range.count == 0) return {};
  const int first = piece_of(range) * lanes;
  auto roots = subtree_roots({.first = range.first - first, .count = range.count}, lanes);
  for (LaneRange& root : roots) root.first += first;
  return roots;
}

Result<LaneRange> lanes_of_rank(int lanes, WorldSize ranks, Rank rank) {
  if (ranks.value < 1 || lanes < ranks.value) {
    return fail(Errc::invalid_argument,
                "{} lanes cannot be spread over {} data-parallel ranks: every rank needs at least one lane; "
                "start at most {} ranks or raise the number of lanes",
                lanes, ranks.value, std::max(lanes, 1));
  }
  if (rank.value < 0 || rank.value >= ranks.value) {
    return fail(Errc::invalid_argument, "rank {} is not one of the {} data-parallel ranks", rank.value,
                ranks.value);
  }
  const int base = lanes / ranks.value;
  const int longer = lanes % ranks.value;
  return LaneRange{.first = rank.value * base + std::min(rank.value, longer),
                   .count = base + (rank.value < longer ? 1 : 0)};
}

Result<std::vector<LaneRange>> split_lanes(int lanes, WorldSize ranks) {
  std::vector<LaneRange> split;
  split.push_back(TRY(lanes_of_rank(lanes, ranks, Rank{0})));
  for (int rank = 1; rank < ranks.value; ++rank) {
    split.push_back(TRY(lanes_of_rank(lanes, ranks, Rank{rank})));
  }
  return split;
}

std::vector<LaneRange> subtree_roots(LaneRange range, int lanes) {
  std::vector<LaneRange> roots;
  visit_roots(range, lanes, [&](LaneRange root) { roots.push_back(root); });
  return roots;
}

int lane_slot(Lane lane, LaneRange held, int lanes) {
  CHECK(held.contains(lane), "a rank finishes lanes that it holds");
  return root_count({.first = held.first, .count = lane.value - held.first}, lanes);
}

std::vector<TreeStep> merge_after(Lane lane, LaneRange held, int lanes) {
  const int slot = lane_slot(lane, held, lanes);
  const int left = root_count({.first = held.first, .count = lane.value - held.first + 1}, lanes);
  std::vector<TreeStep> steps;
  for (int top = slot; top >= left; --top) steps.push_back({.destination = top - 1, .source = top});
  return steps;
}

std::vector<TreeStep> finishing_program(std::span<const LaneRange> split) {
  const int lanes = split.empty() ? 0 : split.back().end();
  std::vector<LaneRange> roots;
  for (const LaneRange& range : split) {
    for (const LaneRange& root : subtree_roots(range, lanes)) roots.push_back(root);
  }
  if (roots.empty()) return {};
  Finisher finisher(roots, lanes);
  finisher.sum(0, tree_width(lanes));
  return finisher.take_steps();
}

}  // namespace troupe::core
