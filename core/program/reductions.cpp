#include "core/program/reductions.hpp"

#include <algorithm>
#include <iterator>

#include "core/errors.hpp"
#include "core/plan/placement.hpp"

namespace troupe::core {
namespace {

/// The sizes of the parts of `elements` for `parts` members, as cut by even_part().
Counts even_parts(std::int64_t elements, int parts) {
  const std::int64_t longer = elements % parts;
  if (longer == 0) return Counts::even(elements / parts, parts);
  return {.kind = CountKind::table,
          .runs = {{elements / parts + 1, longer}, {elements / parts, parts - longer}}};
}

Counts multiplied(Counts counts, std::int64_t factor) {
  for (CountRun& run : counts.runs) run.elements *= factor;
  return counts;
}

/// Elements of each part per chunk if `roots` times as many arrive, at most staging_elements; 0: all.
std::int64_t chunk_of(std::int64_t part, std::int64_t roots, std::int64_t staging_elements) {
  const std::int64_t chunk = staging_elements / std::max<std::int64_t>(roots, 1);
  if (staging_elements == 0 || part <= chunk) return 0;
  return std::max<std::int64_t>(chunk, 1);
}

}  // namespace

Result<Reductions> Reductions::create(const ProgramInputs& inputs, const std::vector<int>& coordinates) {
  Reductions reductions(inputs);
  reductions.held_.resize(inputs.domains.size());
  if (inputs.numerics != Numerics::ordered) return reductions;
  const auto first =
      TRY(lanes_of(0, inputs.domains, inputs.placements.gradients, inputs.lanes, coordinates, inputs.pieces));
  auto longest = coordinates;
  for (std::size_t axis = first.deal.partial_axes(); axis < longest.size(); ++axis) longest[axis] = 0;
  const int rounds = first.deal.dealt(longest).count;
  for (std::size_t domain = 0; domain < inputs.domains.size(); ++domain) {
    const bool is_used = std::any_of(inputs.classes.begin(), inputs.classes.end(),
                                     [&](const TensorClass& c) { return c.domain == domain; });
    if (is_used) TRY(reductions.find_held(domain, coordinates, rounds));
  }
  return reductions;
}

Reductions::Held Reductions::held_in_round(const DomainLanes& domain, const Domain& axes, std::size_t axis,
                                           int round) {
  const LaneDeal& deal = domain.deal;
  Held held;
  auto member = domain.coordinates;
  const auto lanes_of_member = [&](int i) {
    member[axis] = i;
    return axis < deal.partial_axes() ? deal.block(member, axis + 1)
                                      : deal.round_lanes(member, axis + 1, round);
  };
  const int members = axes.sizes[axis];
  if (deal.tree().pieces == 1 && lanes_of_member(0).count <= 1) {
    // Later members have no more lanes than earlier ones, so not all of thousands need be asked.
    int first = 0, end = members;
    while (first < end) {
      const int middle = first + (end - first) / 2;
      if (lanes_of_member(middle).count == 1) {
        first = middle + 1;
      } else {
        end = middle;
      }
    }
    held.roots = Counts::of_runs({{1, first}, {0, members - first}});
    return held;
  }
  std::vector<std::int64_t> roots;
  for (int i = 0; i < members; ++i) {
    const LaneRange lanes = lanes_of_member(i);
    if (deal.tree().pieces == 1 && lanes.count <= 1) {
      roots.push_back(lanes.count);
    } else {
      const auto leaves = deal.leaves_of(lanes, member, axis + 1);
      roots.push_back(static_cast<std::int64_t>(roots_of(leaves, deal.tree()).size()));
    }
    const bool is_one_piece =
        deal.tree().pieces == 1 || (axis + 1 == member.size() && deal.own_pieces() == 1);
    held.single_lanes = held.single_lanes && lanes.count <= 1 && is_one_piece;
  }
  held.roots = Counts::table(roots);
  return held;
}

Result<void> Reductions::find_held(std::size_t index, const std::vector<int>& coordinates, int rounds) {
  const Domain& axes = inputs_->domains[index];
  const auto domain = TRY(lanes_of(index, inputs_->domains, inputs_->placements.gradients, inputs_->lanes,
                                   coordinates, inputs_->pieces));
  auto& [every, last] = held_[index];
  for (std::size_t axis = 0; axis < coordinates.size(); ++axis) {
    every.push_back(held_in_round(domain, axes, axis, 0));
    const bool is_partial = axis < domain.deal.partial_axes();
    const bool is_only = is_partial || rounds == 1;
    last.push_back(is_only ? every.back() : held_in_round(domain, axes, axis, rounds - 1));
    // Only sums over an inner axis, or over sources, can have different roots in different rounds.
    if (is_partial || (axis + 1 == coordinates.size() && domain.sources == 1)) continue;
    for (int round = 1; round + 1 < rounds; ++round) {
      if (held_in_round(domain, axes, axis, round).roots == every.back().roots) continue;
      return fail(Errc::unavailable,
                  "the {} ranks of axis {} hold other subtrees in round {} than in round 0; use ordered "
                  "numerics with {} whose size is a power of two, or fast numerics",
                  axes.sizes[axis], axis, round, domain.sources > 1 ? "groups of experts" : "inner axes");
    }
  }
  return {};
}

ProgramEntry Reductions::exchange(const Travel& travel, std::size_t axis, const Held& held) const {
  ProgramEntry entry;
  entry.operation = CollectiveKind::all_to_all;
  entry.wire = held.single_lanes ? travel.tensor_class->wire : DType::f32;
  entry.elements = travel.elements / shard_count(travel.at, travel.domain->sizes);
  entry.counts = multiplied(held.roots, entry.elements);
  const std::int64_t part = longest_part(entry.elements, travel.domain->sizes[axis]);
  // Every root of every member arrives, one chunk of this rank's part of it at a time.
  entry.chunk = chunk_of(part, held.roots.total(), inputs_->staging_elements);
  return entry;
}

/// One redistribution along one axis.
void Reductions::redistribute(Travel& travel, AxisRedistribution to, const ProgramEntry& model,
                              std::vector<ProgramEntry>& entries) const {
  const auto [axis, what] = to;
  const int members = travel.domain->sizes[axis];
  const auto push = [&](ProgramEntry entry, Placement placement) {
    entry.group = travel.domain->axes[axis];
    entry.tensor = travel.tensor;
    entry.from = travel.at;
    travel.at[axis] = placement;
    entry.to = travel.at;
    entry.ready = model.ready;
    entry.needed = model.needed;
    entries.push_back(std::move(entry));
  };
  const std::int64_t elements = travel.elements / shard_count(travel.at, travel.domain->sizes);
  const bool is_fast = inputs_->numerics == Numerics::fast;
  const bool is_narrow = travel.tensor_class->has_narrow_wire();
  if (is_fast && !is_narrow) {
    ProgramEntry entry;
    entry.operation =
        what == Redistribution::all_reduce ? CollectiveKind::all_reduce : CollectiveKind::reduce_scatter;
    entry.wire = travel.tensor_class->wire;
    entry.elements = elements;
    entry.counts = Counts::even(elements, members);
    entry.averages = inputs_->average_in_collective;
    push(std::move(entry),
         what == Redistribution::all_reduce ? Placement::replicated : Placement::flat_shard);
    return;
  }
  // In `fast` numerics each member has one sum, and a rounded sum is passed on by its owner.
  push(exchange(travel, axis, is_fast ? Held{Counts::even(1, members)} : (*travel.held)[axis]),
       Placement::flat_shard);
  if (what != Redistribution::all_reduce) return;
  ProgramEntry gather;
  gather.operation = CollectiveKind::all_gather;
  gather.wire = is_fast ? travel.tensor_class->wire : travel.tensor_class->gradient;
  gather.elements = elements;
  if (gather.wire != travel.tensor_class->gradient)
    gather.chunk = chunk_of(longest_part(elements, members), members, inputs_->staging_elements);
  gather.counts = even_parts(elements, members);
  push(std::move(gather), Placement::replicated);
}

ProgramEntry Reductions::also_sum(const AlsoSum& over, const TensorClass& tensor_class,
                                  const ProgramEntry& reduction) const {
  ProgramEntry sum = reduction;
  sum.gives.reset();
  sum.group = over.group;
  sum.from = reduction.to;
  sum.wire = tensor_class.gradient;
  sum.chunk = 0;
  sum.averages = false;
  const std::int64_t members = reduction.counts.members();
  const bool is_whole = reduction.operation == CollectiveKind::all_reduce;
  const std::int64_t part = is_whole ? reduction.elements : longest_part(reduction.elements, members);
  if (inputs_->numerics == Numerics::fast) {
    sum.operation = CollectiveKind::all_reduce;
    sum.elements = part;
    sum.counts = Counts::even(part, over.members);
    return sum;
  }
  sum.operation = CollectiveKind::all_gather;
  sum.elements = part * over.members;
  sum.counts = Counts::even(part, over.members);
  sum.chunk = chunk_of(part, over.members, inputs_->staging_elements);
  return sum;
}

Result<void> Reductions::add(const Unit& unit, bool last_round, std::vector<ProgramEntry>& entries) const {
  const auto& tensors = inputs_->units[unit.index].tensors;
  const Placements produced(inputs_->placements.gradients.size(), Placement::partial);
  const auto in_round = TRY(redistributions(produced, inputs_->placements.gradients));
  const auto after = TRY(redistributions(inputs_->placements.gradients, inputs_->placements.optimizer));
  for (const auto& [axis, what] : after) {
    if (what == Redistribution::all_reduce || what == Redistribution::reduce_scatter) continue;
    return fail(Errc::invalid_argument,
                "gradients are sharded along axis {}, but the optimizer is replicated along it; shard both",
                axis);
  }
  const std::size_t first = entries.size();
  std::vector<ProgramEntry> later;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (!tensors[t].trainable) continue;
    Travel travel{.tensor = {TensorKind::gradients, unit.index, static_cast<int>(t)},
                  .tensor_class = &inputs_->classes[tensors[t].tensor_class],
                  .domain = nullptr,
                  .held = nullptr,
                  .elements = tensors[t].elements,
                  .at = produced};
    travel.domain = &inputs_->domains[travel.tensor_class->domain];
    const Domains& held = held_[travel.tensor_class->domain];
    travel.held = last_round ? &held.last : &held.every;
    ProgramEntry model;
    model.ready = unit.ready;
    model.needed = unit.reused;
    for (const auto& step : in_round) redistribute(travel, step, model, entries);
    if (!last_round) continue;
    if (inputs_->overlap || in_round.empty()) model.needed = {Phase::finish, 0};
    const std::size_t first_later = later.size();
    for (const auto& step : after) redistribute(travel, step, model, later);
    if (!travel.tensor_class->also_sum) continue;
    // On each rank's own part, when it contains all lanes, and before the others get it.
    auto place = later.end();
    while (place != later.begin() + static_cast<std::ptrdiff_t>(first_later) &&
           std::prev(place)->operation == CollectiveKind::all_gather) {
      --place;
    }
    ProgramEntry reduction = first_later == later.size() ? entries.back() : *std::prev(place);
    reduction.needed = model.needed;
    later.insert(place, also_sum(*travel.tensor_class->also_sum, *travel.tensor_class, reduction));
  }
  if (unit.pooled && entries.size() > first) entries.back().gives = Credit{Pool::gradients, unit.ready};
  entries.insert(entries.end(), later.begin(), later.end());
  return {};
}

}  // namespace troupe::core
