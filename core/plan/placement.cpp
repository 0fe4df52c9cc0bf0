#include "core/plan/placement.hpp"

#include <array>

#include "core/errors.hpp"
#include "core/layout/buffer_layout.hpp"

namespace troupe::core {
namespace {

constexpr auto R = Placement::replicated;
constexpr auto P = Placement::partial;
constexpr auto F = Placement::flat_shard;

StrategyPlacements table(Strategy strategy) {
  switch (strategy) {
    case Strategy::ddp:
      return {.parameters = {R}, .gradients = {P}, .optimizer = {R}};
    case Strategy::zero1:
      return {.parameters = {R}, .gradients = {P}, .optimizer = {F}};
    case Strategy::zero2:
      return {.parameters = {R}, .gradients = {F}, .optimizer = {F}};
    case Strategy::zero3:
      return {.parameters = {F}, .gradients = {F}, .optimizer = {F}};
    case Strategy::hsdp:
      return {.parameters = {R, F}, .gradients = {P, F}, .optimizer = {R, F}};
    case Strategy::hfsdp:
      return {.parameters = {R, F}, .gradients = {P, F}, .optimizer = {F, F}};
  }
  CHECK(false, "every strategy is in the table");
}

/// Whether the redistribution along one axis makes the local tensor larger.
bool grows(Redistribution what) {
  return what == Redistribution::all_gather;
}

}  // namespace

Result<StrategyPlacements> placements_of(Strategy strategy, int optimizer_instances) {
  StrategyPlacements placements = table(strategy);
  if (optimizer_instances == 1) return placements;
  if (placements.optimizer != Placements{F}) {
    return fail(
        Errc::invalid_argument,
        "{} cannot have {} optimizer instances: only an optimizer that is sharded over one axis (zero1, "
        "zero2, zero3) can have copies of its shards",
        name_of(strategy), optimizer_instances);
  }
  const auto across_instances = [](Placements& list, Placement outer) { list.insert(list.begin(), outer); };
  across_instances(placements.parameters, R);
  across_instances(placements.gradients, P);
  across_instances(placements.optimizer, R);
  return placements;
}

Result<Redistribution> redistribution(Placement from, Placement to) {
  if (from == to) return Redistribution::none;
  if (from == P) return to == R ? Redistribution::all_reduce : Redistribution::reduce_scatter;
  if (from == F && to == R) return Redistribution::all_gather;
  if (from == R && to == F) return Redistribution::slice;
  return fail(Errc::invalid_argument, "a {} tensor cannot become a partial sum",
              from == R ? "replicated" : "sharded");
}

Result<std::vector<AxisRedistribution>> redistributions(const Placements& from, const Placements& to) {
  if (from.size() != to.size()) {
    return fail(Errc::invalid_argument, "placements over {} axes cannot become placements over {} axes",
                from.size(), to.size());
  }
  std::vector<AxisRedistribution> shrinking;
  std::vector<AxisRedistribution> growing;
  for (std::size_t axis = from.size(); axis-- > 0;) {
    const Redistribution what = TRY(redistribution(from[axis], to[axis]));
    if (what == Redistribution::none) continue;
    if (grows(what)) {
      growing.insert(growing.begin(), {axis, what});
    } else {
      shrinking.push_back({axis, what});
    }
  }
  shrinking.insert(shrinking.end(), growing.begin(), growing.end());
  return shrinking;
}

Result<ElementRange> local_range(std::int64_t elements, const Placements& placements,
                                 const std::vector<int>& sizes, const std::vector<int>& coordinates) {
  if (sizes.size() != placements.size() || coordinates.size() != placements.size()) {
    return fail(Errc::invalid_argument,
                "{} placements need as many axis sizes and coordinates, not {} and {}", placements.size(),
                sizes.size(), coordinates.size());
  }
  ElementRange range{0, elements};
  bool may_be_flat = true;
  for (std::size_t axis = placements.size(); axis-- > 0;) {
    const int size = sizes[axis];
    if (size < 1 || coordinates[axis] < 0 || coordinates[axis] >= size) {
      return fail(Errc::invalid_argument, "{} is not a coordinate on axis {} of size {}", coordinates[axis],
                  axis, size);
    }
    if (placements[axis] != F) {
      may_be_flat = false;
      continue;
    }
    if (!may_be_flat) {
      return fail(Errc::invalid_argument,
                  "axis {} is sharded inside an axis that is not: shard the last axes", axis);
    }
    if (range.size() % size != 0) {
      return fail(Errc::invalid_argument, "{} elements are not divisible by the {} ranks of axis {}",
                  range.size(), size, axis);
    }
    range = even_part(range, size, coordinates[axis]);
  }
  return range;
}

std::int64_t shard_count(const Placements& placements, const std::vector<int>& sizes) {
  std::int64_t count = 1;
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    if (placements[axis] == Placement::flat_shard) count *= sizes[axis];
  }
  return count;
}

ElementRange part_of(ElementRange range, const Placements& placements, const std::vector<int>& sizes,
                     const std::vector<int>& coordinates) {
  for (std::size_t axis = placements.size(); axis-- > 0;) {
    if (placements[axis] == Placement::flat_shard) range = even_part(range, sizes[axis], coordinates[axis]);
  }
  return range;
}

}  // namespace troupe::core
