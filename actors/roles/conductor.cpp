#include "actors/roles/conductor.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/errors.hpp"
#include "core/indices.hpp"

namespace troupe::actors {

using messages::Role;

ConductorMachine::ConductorMachine(ConductorConfig config)
    : config_(std::move(config)), ready_(config_.entries.size(), core::Step{-1}) {
  std::vector<core::PlanEntryIndex> launches;
  for (const auto entry : core::indices<core::PlanEntryIndex>(config_.entries.size())) {
    launches.push_back(entry);
  }
  follow(launches);
}

void ConductorMachine::follow(const std::vector<core::PlanEntryIndex>& launches) {
  CHECK(launches.size() == config_.entries.size(), "every entry of the plan is launched once");
  cursors_.clear();
  for (const auto entry : launches) {
    const auto stream = static_cast<std::size_t>(config_.entries[core::place_of(entry)].stream);
    if (cursors_.size() <= stream) cursors_.resize(stream + 1);
    cursors_[stream].entries.push_back(entry);
  }
  std::erase_if(cursors_, [](const Cursor& cursor) { return cursor.entries.empty(); });
}

void ConductorMachine::receive(const messages::Envelope& envelope, Outbox& outbox) {
  if (aborting_) return;
  dispatch(envelope.body, Overloaded{[&](const messages::OrderLearned& m) {
                                       if (!begun_) follow(m.launches);
                                     },
                                     [&](const messages::StepBegan& m) { on(m, outbox); },
                                     [&](const messages::CollectiveReady& m) { on(m, outbox); },
                                     [&](const messages::CollectiveDone& m) { on(m, outbox); },
                                     [&](const messages::StepDecided& m) { on(m, outbox); },
                                     [&](const messages::Fence&) { aborting_ = true; }});
}

void ConductorMachine::on(const messages::StepBegan& begun, Outbox& outbox) {
  // The first step fixes where the cursors start; they reach later steps by themselves.
  if (begun_) return;
  begun_ = true;
  for (auto& cursor : cursors_) cursor.step = begun.step;
  advance(outbox);
}

void ConductorMachine::on(const messages::CollectiveReady& ready, Outbox& outbox) {
  CHECK(core::place_of(ready.entry) < config_.entries.size(), "readiness is said of an entry of the plan");
  if (ready.step <= ready_[core::place_of(ready.entry)]) return;
  ready_[core::place_of(ready.entry)] = ready.step;
  advance(outbox);
}

void ConductorMachine::on(const messages::StepDecided& decided, Outbox& outbox) {
  if (decided.commit) return;
  refused_step_ = decided.step;
  advance(outbox);
}

void ConductorMachine::advance(Outbox& outbox) {
  if (!begun_) return;
  for (auto& cursor : cursors_) advance(cursor, outbox);
  if (!watching_ && !in_flight_.empty()) {
    watching_ = true;
    watched_ = in_flight_.front().sequence;
    outbox.arm(kWatchdog, config_.deadline);
  }
}

void ConductorMachine::advance(Cursor& cursor, Outbox& outbox) {
  while (true) {
    const auto next = cursor.next();
    const auto& entry = config_.entries[core::place_of(next)];
    const bool skipped = entry.only_if_committed && refused_step_ == cursor.step;
    if (!skipped) {
      if (ready_[core::place_of(next)] != cursor.step) return;
      outbox.perform(LaunchCollective{cursor.step, next, sequence_, entry.communicator, entry.alike,
                                      entry.final_sum, core::BucketIndex{entry.owner.index}});
      in_flight_.push_back({cursor.step, next, sequence_});
      sequence_ += 1;
    }
    cursor.place += 1;
    if (cursor.place == cursor.entries.size()) {
      cursor.place = 0;
      cursor.step.value += 1;
    }
  }
}

void ConductorMachine::on(const messages::CollectiveDone& done, Outbox& outbox) {
  auto found = std::find_if(in_flight_.begin(), in_flight_.end(),
                            [&](const InFlight& flight) { return flight.sequence == done.sequence; });
  if (found == in_flight_.end()) return;
  InFlight flight = *found;
  in_flight_.erase(found);
  if (done.failure.failed) {
    fail(flight, done.failure, outbox);
    return;
  }
  outbox.send(config_.entries[core::place_of(flight.entry)].owner, done);
}

void ConductorMachine::timer(TimerId, Outbox& outbox) {
  watching_ = false;
  if (aborting_ || in_flight_.empty()) return;
  if (in_flight_.front().sequence == watched_) {
    fail(in_flight_.front(),
         {true, core::Errc::timeout, "the device has not finished it within the deadline"}, outbox);
    return;
  }
  advance(outbox);
}

void ConductorMachine::fail(const InFlight& culprit, messages::Failure failure, Outbox& outbox) {
  aborting_ = true;
  failure.message =
      fmt::format("{} of step {} (launch {}): {}", config_.entries[core::place_of(culprit.entry)].name,
                  culprit.step.value, culprit.sequence, failure.message);
  outbox.send({config_.rank, Role::rank_supervisor, 0},
              messages::CollectiveFailed{culprit.step, culprit.entry, culprit.sequence, failure});
}

std::string_view ConductorMachine::state() const {
  if (aborting_) return "aborting";
  if (!in_flight_.empty()) return "launching";
  return begun_ ? "waiting" : "idle";
}

std::string ConductorMachine::waiting_for() const {
  if (aborting_ || !begun_ || config_.entries.empty()) return {};
  std::string text;
  for (const auto& cursor : cursors_) {
    text += fmt::format("{}{} of step {}", text.empty() ? "" : " and ",
                        config_.entries[core::place_of(cursor.next())].name, cursor.step.value);
  }
  text += " to be ready";
  if (!in_flight_.empty()) {
    const auto& oldest = in_flight_.front();
    text +=
        fmt::format("; {} launched and not over, the oldest is {} of step {} (launch {})", in_flight_.size(),
                    config_.entries[core::place_of(oldest.entry)].name, oldest.step.value, oldest.sequence);
  }
  return text;
}

}  // namespace troupe::actors
