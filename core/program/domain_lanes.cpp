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

std::vector<LaneRange> DomainLanes::pieces(int round) const {
  if (!is_dealt_by_round()) return source_blocks;
  const LaneRange all = deal.round_lanes(coordinates, coordinates.size(), round);
  std::vector<LaneRange> found;
  for (int lane = all.first; lane < all.end(); ++lane) found.push_back({lane, 1});
  return found;
}

Result<DomainLanes> lanes_of(std::size_t domain, std::span<const Domain> domains, const Placements& gradients,
                             int lanes, const std::vector<int>& coordinates) {
  const Domain& own = domains[domain];
  DomainLanes found{.deal = {},
                    .coordinates = coordinates_in(own, domains[0], coordinates),
                    .sources = sources_in(own, domains[0]),
                    .source_blocks = {}};
  found.deal = TRY(LaneDeal::create(lanes, gradients, own.sizes, found.sources));
  if (found.is_dealt_by_round()) return found;
  const auto first = TRY(LaneDeal::create(lanes, gradients, domains[0].sizes));
  auto source = coordinates;
  source.back() = source.back() / found.sources * found.sources;
  for (int i = 0; i < found.sources; ++i, ++source.back()) {
    found.source_blocks.push_back(first.block(source, source.size()));
  }
  return found;
}

SourceStacks source_stacks(const DomainLanes& lanes, int round) {
  SourceStacks stacks;
  const int all = lanes.deal.lanes();
  const auto pieces = lanes.pieces(round);
  // By place among the roots of all pieces: the slot it lies in.
  std::vector<int> slot_of;
  if (!lanes.is_dealt_by_round()) {
    for (const LaneRange& piece : pieces)
      stacks.depth = std::max(stacks.depth, accumulation_slots(piece, all));
  }
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto roots = static_cast<int>(subtree_roots(pieces[i], all).size());
    for (int root = 0; root < roots; ++root) slot_of.push_back(static_cast<int>(i) * stacks.depth + root);
  }
  stacks.slots = stacks.depth * lanes.sources;
  stacks.merge = merge_roots(pieces, all);
  const auto slot = [&](int place) { return slot_of[static_cast<std::size_t>(place)]; };
  for (TreeStep& step : stacks.merge.steps) step = {slot(step.destination), slot(step.source)};
  for (int& root : stacks.merge.roots) root = slot(root);
  return stacks;
}

}  // namespace troupe::core
