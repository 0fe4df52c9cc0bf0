#include "actors/roles/replica_coordinator.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/enum_names.hpp"

namespace troupe::actors {

using core::Errc;
using messages::Failure;

ReplicaCoordinatorMachine::ReplicaCoordinatorMachine(ReplicaCoordinatorConfig config)
    : config_(std::move(config)) {}

void ReplicaCoordinatorMachine::receive(const messages::Envelope& envelope, Outbox& outbox) {
  dispatch(envelope.body, Overloaded{[&](const messages::CopyReady& m) { on(m, outbox); },
                                     [&](const messages::CopiesHeld& m) { on(m, outbox); }});
}

void ReplicaCoordinatorMachine::on(const messages::CopyReady& ready, Outbox& outbox) {
  if (!is_member(ready.rank)) return;
  // No rank reaches a save before the previous one has ended for it.
  if (state_ == State::idle && ready.sequence > sequence_) {
    sequence_ = ready.sequence;
    state_ = State::copying;
    ready_.clear();
    held_.clear();
    outbox.arm(kDeadline, config_.deadline);
  }
  if (state_ != State::copying || ready.sequence != sequence_) return;
  ready_[ready.rank] = ready;
  if (ready.failure.failed) {
    finish(blame(ready.rank, ready.failure), outbox);
    return;
  }
  const auto& first = ready_.begin()->second;
  if (ready.step != first.step) {
    finish({true, Errc::mismatch,
            fmt::format("rank {} saves after step {}, rank {} after step {}", ready.rank.value,
                        ready.step.value, first.rank.value, first.step.value)},
           outbox);
    return;
  }
  if (missing().empty()) exchange(outbox);
}

void ReplicaCoordinatorMachine::exchange(Outbox& outbox) {
  state_ = State::exchanging;
  outbox.arm(kDeadline, config_.deadline);
  for (const auto& clique : config_.cliques) {
    messages::ExchangeBegan begun{sequence_, {}};
    for (auto member : clique) begun.bytes.push_back(ready_.at(member).bytes);
    for (auto member : clique) outbox.send(keeper(member), begun);
  }
}

void ReplicaCoordinatorMachine::on(const messages::CopiesHeld& held, Outbox& outbox) {
  if (state_ != State::exchanging || held.sequence != sequence_ || !is_member(held.rank)) return;
  held_[held.rank] = held;
  if (held.failure.failed) {
    finish(blame(held.rank, held.failure), outbox);
  } else if (missing().empty()) {
    finish({}, outbox);
  }
}

Failure ReplicaCoordinatorMachine::blame(core::Rank rank, const Failure& failure) const {
  return {true, failure.code, fmt::format("rank {}: {}", rank.value, failure.message)};
}

void ReplicaCoordinatorMachine::finish(Failure failure, Outbox& outbox) {
  messages::LocalSaveOver over{sequence_, ready_.begin()->second.step, 0, std::move(failure)};
  for (const auto& [rank, ready] : ready_) over.bytes += over.failure.failed ? 0 : ready.bytes;
  outbox.cancel(kDeadline);
  state_ = State::idle;
  // Including ranks that have not said anything yet: none of their work may wait for the rest of this save.
  for (std::int32_t rank = 0; rank < config_.world.value; ++rank) outbox.send(keeper({rank}), over);
}

void ReplicaCoordinatorMachine::timer(TimerId, Outbox& outbox) {
  if (state_ == State::idle) return;
  finish({true, Errc::timeout,
          fmt::format("local save {} did not end within {} s: it still waits for {}", sequence_,
                      std::chrono::duration_cast<std::chrono::seconds>(config_.deadline).count(),
                      waiting_for())},
         outbox);
}

std::vector<int> ReplicaCoordinatorMachine::missing() const {
  std::vector<int> ranks;
  for (std::int32_t rank = 0; rank < config_.world.value; ++rank) {
    const bool is_there = state_ == State::copying ? ready_.contains({rank}) : held_.contains({rank});
    if (!is_there) ranks.push_back(rank);
  }
  return ranks;
}

std::string_view ReplicaCoordinatorMachine::state() const {
  static constexpr auto kNames = core::enum_names<State>("idle", "copying", "exchanging");
  return kNames[state_];
}

std::string ReplicaCoordinatorMachine::waiting_for() const {
  if (state_ == State::idle) return {};
  return fmt::format("rank {} to {}", fmt::join(missing(), ", "),
                     state_ == State::copying ? "have its own copy" : "hold the copies of its clique");
}

}  // namespace troupe::actors
