#include "actors/roles/conductor.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/errors.hpp"
#include "core/indices.hpp"

namespace troupe::actors {

using messages::Role;

ConductorMachine::ConductorMachine(ConductorConfig config)
    : config_(std::move(config)), ready_(config_.entries.size(), core::Step{-1}) {}

void ConductorMachine::receive(const messages::Envelope& envelope, Outbox& outbox) {
  if (aborting_) return;
  dispatch(envelope.body, Overloaded{[&](const messages::StepBegan& m) { on(m, outbox); },
                                     [&](const messages::CollectiveReady& m) { on(m, outbox); },
                                     [&](const messages::CollectiveDone& m) { on(m, outbox); },
                                     [&](const messages::StepDecided& m) { on(m, outbox); },
                                     [&](const messages::Fence&) { aborting_ = true; }});
}

void ConductorMachine::on(const messages::StepBegan& begun, Outbox& outbox) {
  // The first step fixes where the cursor starts; later ones are reached by the cursor itself.
  if (step_.value >= 0) return;
  step_ = begun.step;
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
  while (step_.value >= 0 && !config_.entries.empty()) {
    const auto& entry = config_.entries[core::place_of(next_)];
    bool skipped = entry.only_if_committed && refused_step_ == step_;
    if (!skipped) {
      if (ready_[core::place_of(next_)] != step_) break;
      outbox.perform(LaunchCollective{step_, next_, sequence_});
      in_flight_.push_back({step_, next_, sequence_});
      sequence_ += 1;
    }
    next_.value += 1;
    if (core::place_of(next_) == config_.entries.size()) {
      next_.value = 0;
      step_.value += 1;
    }
  }
  if (!watching_ && !in_flight_.empty()) {
    watching_ = true;
    watched_ = in_flight_.front().sequence;
    outbox.arm(kWatchdog, config_.deadline);
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
  return step_.value < 0 ? "idle" : "waiting";
}

std::string ConductorMachine::waiting_for() const {
  if (aborting_ || step_.value < 0 || config_.entries.empty()) return {};
  std::string text =
      fmt::format("{} of step {} to be ready", config_.entries[core::place_of(next_)].name, step_.value);
  if (!in_flight_.empty()) {
    const auto& oldest = in_flight_.front();
    text +=
        fmt::format("; {} launched and not over, the oldest is {} of step {} (launch {})", in_flight_.size(),
                    config_.entries[core::place_of(oldest.entry)].name, oldest.step.value, oldest.sequence);
  }
  return text;
}

}  // namespace troupe::actors
