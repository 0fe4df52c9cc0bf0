#include <algorithm>

#include "actors/planes/step/rank_program.hpp"
#include "core/errors.hpp"
#include "core/program/exchange.hpp"

namespace troupe::actors {

namespace {

/// In the order of members, each of which has one sum.
RootSum one_after_another(std::int64_t members) {
  RootSum sum;
  sum.terms = {{0, static_cast<std::size_t>(members)}};
  for (int member = 1; member < members; ++member) sum.steps.push_back({0, member});
  return sum;
}

void add_term(std::size_t number, std::vector<TermRun>& terms) {
  if (terms.empty() || terms.back().first + terms.back().count != number) terms.push_back({number, 0});
  terms.back().count += 1;
}

}  // namespace

std::vector<int> RankProgram::summed_slots(core::BucketIndex bucket, int round) const {
  return is_ordered() ? stacks(bucket, round).merge.roots : std::vector<int>{0};
}

bool RankProgram::rests(const PlannedLaunch& launch) const {
  const auto& resting = program_.placements.gradients;
  return reduces_each_round() && launch.entry->from != resting && launch.entry->to == resting;
}

void RankProgram::number(PlannedLaunch& launch, KnownSums& known) const {
  launch.recipe = launch.round == 0 ? launch.entry->first : launch.entry->later;
  if (launch.bucket) {
    launch.from = held(launch.entry->from, *launch.bucket);
    launch.to = held(launch.entry->to, *launch.bucket);
  }
  const auto& steps = recipe(launch);
  if (!steps.each_chunk.empty()) launch.chunks = core::chunks_of(*launch.entry);
  for (const auto* some : {&steps.before, &steps.each_chunk, &steps.after}) {
    for (const auto& step : *some) number(step, launch, known);
  }
}

void RankProgram::number(const core::RecipeStep& step, PlannedLaunch& launch, KnownSums& known) const {
  const auto& entry = *launch.entry;
  switch (step.action) {
    case core::Action::cut_part: {
      const auto most = std::max<std::int64_t>(core::chunk_elements(entry), 1);
      launch.chunks = (launch.from.size() + most - 1) / most;
      break;
    }
    case core::Action::cut_exchange:
      for (const auto& [elements, members] : entry.counts.runs) {
        if (entry.elements > 0)
          launch.arriving += static_cast<std::size_t>(elements / entry.elements * members);
      }
      break;
    case core::Action::keep:
      launch.held = sums_held(launch);
      break;
    case core::Action::send: {
      launch.held = sums_held(launch);
      const bool is_one = launch.held.size() == 1 && launch.chunks == 1 && entry.wire == core::DType::f32;
      launch.sending = is_one ? Sending::as_it_is : Sending::packed;
      if (launch.held.empty()) launch.sending = Sending::nothing;
      break;
    }
    case core::Action::add_tree:
    case core::Action::add_in_order:
      launch.rested = slots_rested(launch);
      launch.sums = sums_of(step.action, launch, known);
      CHECK(!launch.last_reduction || launch.sums->size() == 1,
            "the last exchange leaves the sum over all lanes");
      break;
    case core::Action::add_members:
      launch.sums = sums_of(step.action, launch, known);
      break;
    case core::Action::unpack_others: {
      const auto place = static_cast<std::size_t>(launch.place);
      const auto members = static_cast<std::size_t>(entry.counts.members());
      if (place > 0) launch.others.emplace_back(0, place);
      if (place + 1 < members) launch.others.emplace_back(place + 1, members);
      break;
    }
    case core::Action::clear:
      // Slots that were added to others are zeros already. Without a lane all of them are.
      if (rounds_[launch.round]) launch.cleared = summed_slots(*launch.bucket, launch.round);
      break;
    default:
      break;
  }
}

/// They depend on the members of the exchange and on what rested before, not on the bucket.
RankProgram::Sums RankProgram::sums_of(core::Action action, const PlannedLaunch& launch,
                                       KnownSums& known) const {
  const auto members = launch.entry->counts.members();
  auto& sums =
      known[{action, plan_->domain_of(*launch.bucket), launch.axis, launch.round, members, rests(launch)}];
  if (sums) return sums;
  if (action == core::Action::add_tree) {
    sums = std::make_shared<const std::vector<RootSum>>(sums_left(launch));
  } else {
    const auto before = action == core::Action::add_in_order ? launch.rested.size() : 0;
    sums = std::make_shared<const std::vector<RootSum>>(
        1, one_after_another(static_cast<std::int64_t>(before) + members));
  }
  return sums;
}

/// Each over the part of the bucket that this rank holds.
std::vector<KeptSum> RankProgram::sums_held(const PlannedLaunch& launch) const {
  const auto bucket = *launch.bucket;
  const auto& resting = program_.placements.gradients;
  const bool is_full = reduces_each_round() && launch.entry->from != resting;
  const bool is_first = std::all_of(launch.entry->from.begin(), launch.entry->from.end(),
                                    [](core::Placement p) { return p == core::Placement::partial; });
  if (!is_ordered()) return {{is_full ? core::Place::full_gradients : core::Place::sums, 0}};
  std::vector<KeptSum> sums;
  const auto roots = core::roots_of(leaves_of(launch, launch.place), tree());
  if (is_first) {
    if (roots.empty()) return sums;
    for (const int slot : summed_slots(bucket, launch.round))
      sums.push_back({reduces_each_round() ? core::Place::full_gradients : core::Place::sums, slot});
    CHECK(sums.size() == roots.size(), "a rank has summed as far as its lanes go");
    return sums;
  }
  if (launch.entry->from == resting) {
    for (const int slot : this->resting(bucket).slots_of(roots)) sums.push_back({core::Place::sums, slot});
    return sums;
  }
  for (int root = 0; root < static_cast<int>(roots.size()); ++root) {
    if (root == 0) sums.push_back({core::Place::sums, 0});
    if (root > 0) sums.push_back({core::Place::carried, root - 1});
  }
  return sums;
}

std::vector<int> RankProgram::slots_rested(const PlannedLaunch& launch) const {
  if (!rests(launch)) return {};
  if (!is_ordered()) return std::vector<int>(launch.round > 0 ? 1 : 0);
  return resting(*launch.bucket).slots_of(core::roots_of(before(*launch.bucket, launch.round), tree()));
}

/// Those of the tree over lanes that can be made of what rested here and of what arrives.
std::vector<RootSum> RankProgram::sums_left(const PlannedLaunch& launch) const {
  const auto bucket = *launch.bucket;
  std::vector<core::LaneRange> blocks;
  if (rests(launch)) blocks = before(bucket, launch.round);
  auto place = lanes_of(bucket).coordinates;
  for (int member = 0; member < launch.entry->counts.members(); ++member) {
    place[launch.axis] = member;
    const auto more = leaves_at(launch, place);
    blocks.insert(blocks.end(), more.begin(), more.end());
  }
  const auto [order, merge, roots] = core::sort_and_merge(blocks, tree());
  const auto slots = resting(bucket).slots_of(roots);
  std::vector<RootSum> sums;
  for (std::size_t root = 0; root < roots.size(); ++root) {
    RootSum sum;
    const auto number = static_cast<int>(root);
    if (rests(launch)) sum.kept.slot = slots[root];
    if (!rests(launch) && number > 0) sum.kept = {core::Place::carried, number - 1};
    const auto first = merge.roots[root];
    const auto end = root + 1 < roots.size() ? merge.roots[root + 1] : static_cast<int>(order.size());
    for (int at = first; at < end; ++at)
      add_term(static_cast<std::size_t>(order[static_cast<std::size_t>(at)]), sum.terms);
    for (const auto& [destination, source] : merge.steps) {
      if (destination >= first && destination < end)
        sum.steps.push_back({destination - first, source - first});
    }
    sums.push_back(std::move(sum));
  }
  return sums;
}

}  // namespace troupe::actors
