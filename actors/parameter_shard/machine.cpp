#include "actors/parameter_shard/machine.hpp"

#include <fmt/format.h>

namespace troupe::actors {

using messages::Role;

ParameterShardMachine::ParameterShardMachine(ParameterShardConfig config) : config_(config) {}

void ParameterShardMachine::receive(const messages::Envelope& envelope, Outbox& outbox) {
  dispatch(envelope.body, Overloaded{[&](const messages::StepDecided& m) { on(m, outbox); },
                                     [&](const messages::ShardStepped& m) { on(m, outbox); },
                                     [&](const messages::CollectiveDone& m) { on(m, outbox); }});
}

void ParameterShardMachine::on(const messages::StepDecided& decided, Outbox& outbox) {
  if (decided.step <= step_) return;
  step_ = decided.step;
  state_ = State::updating;
  stepped_ = false;
  collected_ = false;
  gathers_ = decided.commit && config_.gather_entry.has_value();
  outbox.perform(
      StepShard{step_, config_.bucket, decided.commit, decided.learning_rate, decided.clip_factor});
  // The gather's stream waits for the optimizer's event, so the entry is ready as soon as the update is
  // enqueued.
  if (gathers_) outbox.send(peer(Role::conductor), messages::CollectiveReady{step_, *config_.gather_entry});
}

void ParameterShardMachine::on(const messages::ShardStepped& stepped, Outbox& outbox) {
  if (stepped.step != step_ || stepped_) return;
  stepped_ = true;
  outbox.send(peer(Role::rank_supervisor), messages::ShardUpdated{step_, config_.bucket});
  if (gathers_ && !collected_) {
    state_ = State::gathering;
    return;
  }
  publish(outbox);
}

void ParameterShardMachine::on(const messages::CollectiveDone& done, Outbox& outbox) {
  if (done.step != step_ || done.failure.failed || collected_) return;
  collected_ = true;
  if (stepped_) publish(outbox);
}

void ParameterShardMachine::publish(Outbox& outbox) {
  state_ = State::gathered;
  outbox.send(peer(Role::trainer), messages::Published{step_, config_.bucket});
}

std::string_view ParameterShardMachine::state() const {
  switch (state_) {
    case State::gathered:
      return "gathered";
    case State::updating:
      return "updating";
    case State::gathering:
      return "gathering";
  }
  return "gathered";
}

std::string ParameterShardMachine::waiting_for() const {
  switch (state_) {
    case State::gathered:
      return {};
    case State::updating:
      return fmt::format("the optimizer's update of step {}", step_.value);
    case State::gathering:
      return fmt::format("the gather of step {}", step_.value);
  }
  return {};
}

}  // namespace troupe::actors
