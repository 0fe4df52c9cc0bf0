#include "actors/simulation/credit_invariants.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "actors/planes/step/rank_program.hpp"
#include "actors/roles/machine.hpp"
#include "core/errors.hpp"
#include "core/indices.hpp"

namespace troupe::actors {

using core::Phase;
using messages::Role;

namespace {

std::string describe(const TrainerPlace& place) {
  return fmt::format("'{}' of round {} of step {}",
                     core::describe(core::TrainerPoint{place.phase, place.unit}), place.round,
                     place.step.value);
}

}  // namespace

CreditInvariants::Watched* CreditInvariants::find(core::Rank rank) {
  const auto place = static_cast<std::size_t>(rank.value);
  return place < watched_.size() ? watched_[place].get() : nullptr;
}

CreditInvariants::Watched& CreditInvariants::at(core::Rank rank) {
  auto* watched = find(rank);
  CHECK(watched != nullptr, "a trainer reports where it is after it has joined");
  return *watched;
}

void CreditInvariants::joined(core::Rank rank, const TrainingPlan& plan, bool learns_order) {
  const auto place = static_cast<std::size_t>(rank.value);
  if (watched_.size() <= place) watched_.resize(place + 1);
  watched_[place] = std::make_unique<Watched>();
  auto& watched = *watched_[place];
  auto program = program_of(plan, rank);
  program.coordinates = {};  // the rest may be that of other ranks
  const auto slots = [&](core::Pool pool) {
    return static_cast<std::size_t>(program.credits[static_cast<std::size_t>(pool)]);
  };
  watched.parameters.resize(slots(core::Pool::parameters));
  watched.gradients.resize(slots(core::Pool::gradients));
  const auto known =
      std::find_if(tables_.begin(), tables_.end(), [&](const auto& one) { return one.first == program; });
  if (learns_order) {
    watched.program.emplace(plan, rank);
    watched.table = read(*watched.program);
  } else if (known != tables_.end()) {
    watched.table = known->second;
  } else {
    watched.table = read(RankProgram(plan, rank));
    tables_.emplace_back(std::move(program), watched.table);
  }
  watched.streams.resize(watched.table->streams.size());
  watched.done.assign(watched.table->launches.size(), core::Step{-1});
}

void CreditInvariants::learned(core::Rank rank) {
  auto& watched = at(rank);
  CHECK(watched.program.has_value(), "a trainer says when it joins that it learns the order");
  watched.program->follow_order();
  watched.table = read(*watched.program);
  watched.program.reset();
}

std::shared_ptr<const CreditInvariants::Table> CreditInvariants::read(const RankProgram& program) {
  Table table;
  table.clock = program.clock();
  table.streams.resize(static_cast<std::size_t>(program.program().streams));
  table.launches.resize(program.launches().size());
  table.gradient_slots.assign(static_cast<std::size_t>(program.program().unit_count()), -1);
  for (const auto number : program.sequence()) {
    const auto& planned = program.launch(number);
    const auto& entry = *planned.entry;
    Launch launch{.name = core::describe(entry),
                  .stream = static_cast<std::size_t>(entry.stream),
                  .unit = entry.tensor.unit,
                  .slot = planned.slot,
                  .takes = entry.takes.has_value(),
                  .gives = entry.gives.has_value(),
                  .needed = planned.needed};
    launch.brings = !planned.is_verdict() && !planned.moves_gradients() && !planned.publishes();
    launch.publishes = !planned.is_verdict() && planned.publishes();
    if (entry.takes) launch.until = table.clock.at(entry.takes->point, planned.round);
    if (launch.gives) table.gradient_slots[static_cast<std::size_t>(launch.unit)] = launch.slot;
    if (launch.brings) table.bringing[launch.needed].push_back(core::place_of(number));
    table.streams[launch.stream].push_back(core::place_of(number));
    table.launches[core::place_of(number)] = std::move(launch);
  }
  return std::make_shared<const Table>(std::move(table));
}

void CreditInvariants::uses(core::Rank rank, const TrainerPlace& place) {
  auto& watched = at(rank);
  watched.passed = {place.step, watched.table->clock.at({place.phase, place.unit}, place.round) - 1};
  check_read(rank, watched, place);
  if (place.phase == Phase::backward) take_gradients(rank, watched, place);
}

void CreditInvariants::leaves(core::Rank rank, const TrainerPlace& place) {
  auto& watched = at(rank);
  watched.passed = {place.step, watched.table->clock.at({place.phase, place.unit}, place.round)};
}

void CreditInvariants::finishes(core::Rank rank, core::Step step) {
  auto& watched = at(rank);
  watched.passed = {step, watched.table->clock.at({Phase::finish, 0}, 0)};
}

void CreditInvariants::step_over(core::Rank rank, core::Step step) {
  auto& watched = at(rank);
  for (std::size_t slot = 0; slot < watched.gradients.size(); ++slot) {
    const auto& user = watched.gradients[slot];
    if (!user) continue;
    violate_(fmt::format("CR-1: after step {} rank {} has slot {} of the pool of gradients taken for unit {}",
                         step.value, rank.value, slot, user->unit));
  }
  for (std::size_t i = 0; i < watched.table->launches.size(); ++i) {
    if (!watched.table->launches[i].takes || watched.done[i] == step) continue;
    violate_(fmt::format("CR-1: step {} of rank {} has ended, but {} has not taken and given back its slot",
                         step.value, rank.value, watched.table->launches[i].name));
  }
}

void CreditInvariants::on_message(core::Rank rank, const messages::Envelope& envelope) {
  auto* found = find(rank);
  if (found == nullptr) return;
  auto& watched = *found;
  dispatch(envelope.body, Overloaded{[&](const messages::StepDecided& decided) {
                                       if (!decided.commit)
                                         watched.refused = std::max(watched.refused, decided.step);
                                     },
                                     [&](const messages::CollectiveDone& done) {
                                       // From the device; the Conductor forwards it.
                                       if (envelope.to.role != Role::conductor || done.failure.failed) return;
                                       const auto place = core::place_of(done.entry);
                                       watched.done[place] = done.step;
                                       const auto& launch = watched.table->launches[place];
                                       if (launch.gives)
                                         watched.gradients[static_cast<std::size_t>(launch.slot)].reset();
                                     }});
}

void CreditInvariants::on_work(const messages::Address& who, const Work& work) {
  const auto* launch = work_if<LaunchCollective>(work);
  auto* watched = find(who.rank);
  if (launch == nullptr || watched == nullptr) return;
  follow(who.rank, *watched, *launch);
  if (watched->table->launches[core::place_of(launch->entry)].brings) take(who.rank, *watched, *launch);
}

void CreditInvariants::follow(core::Rank rank, Watched& watched, const LaunchCollective& work) {
  const auto place = core::place_of(work.entry);
  const auto& launches = watched.table->launches;
  auto& cursor = watched.streams[launches[place].stream];
  const auto& stream = watched.table->streams[launches[place].stream];
  // A session may begin at any step; publications of a refused step are skipped.
  if (!cursor.step) cursor.step = work.step;
  while (*cursor.step == watched.refused && launches[stream[cursor.place]].publishes) {
    if (++cursor.place < stream.size()) continue;
    cursor.place = 0;
    cursor.step->value += 1;
  }
  const auto expected = stream[cursor.place];
  if (expected != place || *cursor.step != work.step) {
    violate_(fmt::format(
        "CO-1: rank {} launches entry {}, {}, of step {}; its program has entry {}, {}, of step {}",
        rank.value, place, launches[place].name, work.step.value, expected, launches[expected].name,
        cursor.step->value));
  }
  if (++cursor.place < stream.size()) return;
  cursor.place = 0;
  cursor.step->value += 1;
}

void CreditInvariants::take(core::Rank rank, Watched& watched, const LaunchCollective& work) {
  const auto place = core::place_of(work.entry);
  const auto& launch = watched.table->launches[place];
  auto& slot = watched.parameters[static_cast<std::size_t>(launch.slot)];
  if (launch.takes) {
    if (slot && slot->until > watched.passed) {
      violate_(fmt::format(
          "CR-1: rank {} launches {} of step {} into slot {} of the pool of parameters, which {} "
          "has until '{}' of step {}",
          rank.value, launch.name, work.step.value, launch.slot, watched.table->launches[slot->launch].name,
          core::describe(watched.table->clock.point(slot->until.second)), slot->until.first.value));
    }
    slot = ParameterSlot{place, {work.step, launch.until}};
    return;
  }
  if (slot && watched.table->launches[slot->launch].unit == launch.unit && slot->until.first == work.step)
    return;
  violate_(fmt::format(
      "CR-1: rank {} launches {} of step {} into slot {} of the pool of parameters, which its unit "
      "has not taken",
      rank.value, launch.name, work.step.value, launch.slot));
}

void CreditInvariants::check_read(core::Rank rank, const Watched& watched, const TrainerPlace& place) {
  const auto found =
      watched.table->bringing.find(watched.table->clock.at({place.phase, place.unit}, place.round));
  if (found == watched.table->bringing.end()) return;
  for (const auto i : found->second) {
    const auto& launch = watched.table->launches[i];
    const auto& slot = watched.parameters[static_cast<std::size_t>(launch.slot)];
    const bool is_there = watched.done[i] == place.step && slot &&
                          watched.table->launches[slot->launch].unit == place.unit &&
                          slot->until.first == place.step;
    if (is_there) continue;
    violate_(fmt::format("UG-1: rank {} reads in {}, but {} has not brought the unit", rank.value,
                         describe(place), launch.name));
  }
}

void CreditInvariants::take_gradients(core::Rank rank, Watched& watched, const TrainerPlace& place) {
  const int number = watched.table->gradient_slots[static_cast<std::size_t>(place.unit)];
  if (number < 0) return;
  auto& slot = watched.gradients[static_cast<std::size_t>(number)];
  if (slot) {
    violate_(fmt::format(
        "CR-1: rank {} writes gradients in {} into slot {} of their pool, which unit {} of step {} "
        "has not given back",
        rank.value, describe(place), number, slot->unit, slot->step.value));
  }
  slot = GradientSlot{place.unit, place.step};
}

}  // namespace troupe::actors
