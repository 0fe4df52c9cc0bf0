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

void CreditInvariants::joined(core::Rank rank, const TrainingPlan& plan) {
  const auto place = static_cast<std::size_t>(rank.value);
  if (watched_.size() <= place) watched_.resize(place + 1);
  watched_[place] = std::make_unique<Watched>(Watched{RankProgram(plan, rank)});
  auto& watched = *watched_[place];
  const auto& program = watched.program;
  watched.parameters.resize(
      static_cast<std::size_t>(program.program().credits[static_cast<std::size_t>(core::Pool::parameters)]));
  watched.gradients.resize(
      static_cast<std::size_t>(program.program().credits[static_cast<std::size_t>(core::Pool::gradients)]));
  watched.gradient_slots.assign(plan.inputs.units.size(), -1);
  watched.launches.resize(program.launches().size());
  watched.done.assign(watched.launches.size(), core::Step{-1});
  read_program(watched);
}

void CreditInvariants::learned(core::Rank rank) {
  auto& watched = at(rank);
  watched.program.follow_order();
  read_program(watched);
}

void CreditInvariants::read_program(Watched& watched) {
  const auto& program = watched.program;
  watched.clock = program.clock();
  watched.streams.assign(static_cast<std::size_t>(program.program().streams), {});
  for (const auto number : program.sequence()) {
    const auto& planned = program.launch(number);
    const auto& entry = planned.entry;
    Launch launch{.name = core::describe(entry),
                  .stream = static_cast<std::size_t>(entry.stream),
                  .unit = entry.tensor.unit,
                  .slot = planned.slot,
                  .takes = entry.takes.has_value(),
                  .gives = entry.gives.has_value(),
                  .needed = planned.needed};
    launch.brings = !planned.is_verdict() && !planned.moves_gradients() && !planned.publishes();
    launch.publishes = !planned.is_verdict() && planned.publishes();
    if (entry.takes) launch.until = watched.clock.at(entry.takes->point, planned.round);
    if (launch.gives) watched.gradient_slots[static_cast<std::size_t>(launch.unit)] = launch.slot;
    watched.streams[launch.stream].launches.push_back(core::place_of(number));
    watched.launches[core::place_of(number)] = std::move(launch);
  }
}

void CreditInvariants::uses(core::Rank rank, const TrainerPlace& place) {
  auto& watched = at(rank);
  watched.passed = {place.step, watched.clock.at({place.phase, place.unit}, place.round) - 1};
  check_read(rank, watched, place);
  if (place.phase == Phase::backward) take_gradients(rank, watched, place);
}

void CreditInvariants::leaves(core::Rank rank, const TrainerPlace& place) {
  auto& watched = at(rank);
  watched.passed = {place.step, watched.clock.at({place.phase, place.unit}, place.round)};
}

void CreditInvariants::finishes(core::Rank rank, core::Step step) {
  auto& watched = at(rank);
  watched.passed = {step, watched.clock.at({Phase::finish, 0}, 0)};
}

void CreditInvariants::step_over(core::Rank rank, core::Step step) {
  auto& watched = at(rank);
  for (std::size_t slot = 0; slot < watched.gradients.size(); ++slot) {
    const auto& user = watched.gradients[slot];
    if (!user) continue;
    violate_(fmt::format("CR-1: after step {} rank {} has slot {} of the pool of gradients taken for unit {}",
                         step.value, rank.value, slot, user->unit));
  }
  for (std::size_t i = 0; i < watched.launches.size(); ++i) {
    if (!watched.launches[i].takes || watched.done[i] == step) continue;
    violate_(fmt::format("CR-1: step {} of rank {} has ended, but {} has not taken and given back its slot",
                         step.value, rank.value, watched.launches[i].name));
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
                                       const auto& launch = watched.launches[place];
                                       if (launch.gives)
                                         watched.gradients[static_cast<std::size_t>(launch.slot)].reset();
                                     }});
}

void CreditInvariants::on_work(const messages::Address& who, const Work& work) {
  const auto* launch = work_if<LaunchCollective>(work);
  auto* watched = find(who.rank);
  if (launch == nullptr || watched == nullptr) return;
  follow(who.rank, *watched, *launch);
  if (watched->launches[core::place_of(launch->entry)].brings) take(who.rank, *watched, *launch);
}

void CreditInvariants::follow(core::Rank rank, Watched& watched, const LaunchCollective& work) {
  const auto place = core::place_of(work.entry);
  auto& cursor = watched.streams[watched.launches[place].stream];
  // A session may begin at any step; publications of a refused step are skipped.
  if (!cursor.step) cursor.step = work.step;
  while (*cursor.step == watched.refused && watched.launches[cursor.launches[cursor.place]].publishes) {
    if (++cursor.place < cursor.launches.size()) continue;
    cursor.place = 0;
    cursor.step->value += 1;
  }
  const auto expected = cursor.launches[cursor.place];
  if (expected != place || *cursor.step != work.step) {
    violate_(fmt::format(
        "CO-1: rank {} launches entry {}, {}, of step {}; its program has entry {}, {}, of step {}",
        rank.value, place, watched.launches[place].name, work.step.value, expected,
        watched.launches[expected].name, cursor.step->value));
  }
  if (++cursor.place < cursor.launches.size()) return;
  cursor.place = 0;
  cursor.step->value += 1;
}

void CreditInvariants::take(core::Rank rank, Watched& watched, const LaunchCollective& work) {
  const auto place = core::place_of(work.entry);
  const auto& launch = watched.launches[place];
  auto& slot = watched.parameters[static_cast<std::size_t>(launch.slot)];
  if (launch.takes) {
    if (slot && slot->until > watched.passed) {
      violate_(fmt::format(
          "CR-1: rank {} launches {} of step {} into slot {} of the pool of parameters, which {} "
          "has until '{}' of step {}",
          rank.value, launch.name, work.step.value, launch.slot, watched.launches[slot->launch].name,
          core::describe(watched.clock.point(slot->until.second)), slot->until.first.value));
    }
    slot = ParameterSlot{place, {work.step, launch.until}};
    return;
  }
  if (slot && watched.launches[slot->launch].unit == launch.unit && slot->until.first == work.step) return;
  violate_(fmt::format(
      "CR-1: rank {} launches {} of step {} into slot {} of the pool of parameters, which its unit "
      "has not taken",
      rank.value, launch.name, work.step.value, launch.slot));
}

void CreditInvariants::check_read(core::Rank rank, const Watched& watched, const TrainerPlace& place) {
  const auto at = watched.clock.at({place.phase, place.unit}, place.round);
  for (std::size_t i = 0; i < watched.launches.size(); ++i) {
    const auto& launch = watched.launches[i];
    if (!launch.brings || launch.needed != at) continue;
    const auto& slot = watched.parameters[static_cast<std::size_t>(launch.slot)];
    const bool is_there = watched.done[i] == place.step && slot &&
                          watched.launches[slot->launch].unit == place.unit &&
                          slot->until.first == place.step;
    if (is_there) continue;
    violate_(fmt::format("UG-1: rank {} reads in {}, but {} has not brought the unit", rank.value,
                         describe(place), launch.name));
  }
}

void CreditInvariants::take_gradients(core::Rank rank, Watched& watched, const TrainerPlace& place) {
  const int number = watched.gradient_slots[static_cast<std::size_t>(place.unit)];
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
