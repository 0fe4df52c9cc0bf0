#include "actors/roles/parameter_shard.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe::actors {

using messages::Role;

ParameterShardMachine::ParameterShardMachine(ParameterShardConfig config) : config_(config) {}

void ParameterShardMachine::receive(const messages::Envelope& envelope, Outbox& outbox) {
  const auto writer = envelope.from.role == Role::local_writer ? Role::local_writer : Role::checkpoint_writer;
  dispatch(envelope.body, Overloaded{[&](const messages::StepDecided& m) { on(m, outbox); },
                                     [&](const messages::SaveBegan& m) { on(m, writer, outbox); },
                                     [&](const messages::BucketStaged& m) { on(m, writer, outbox); },
                                     [&](const messages::StateRestored& m) { step_ = m.step; },
                                     [&](const messages::ShardStepped& m) { on(m, outbox); },
                                     [&](const messages::CollectiveDone& m) { on(m, outbox); }});
}

void ParameterShardMachine::on(const messages::StepDecided& decided, Outbox& outbox) {
  const auto last = decided_.empty() ? step_ : decided_.back().step;
  if (decided.step <= last) return;
  decided_.push_back(decided);
  apply_next(outbox);
}

void ParameterShardMachine::apply_next(Outbox& outbox) {
  if (decided_.empty() || state_ != State::gathered) return;
  const auto step = decided_.front().step;
  const bool wanted =
      std::any_of(holds_.begin(), holds_.end(), [&](const Hold& hold) { return hold.step < step; });
  if (wanted) return;
  const auto decided = std::move(decided_.front());
  decided_.pop_front();
  apply(decided, outbox);
}

void ParameterShardMachine::on(const messages::SaveBegan& begun, Role writer, Outbox& outbox) {
  holds_.push_back({writer, begun.sequence, begun.step, false});
  say_held(outbox);
}

void ParameterShardMachine::on(const messages::BucketStaged& staged, Role writer, Outbox& outbox) {
  std::erase_if(holds_,
                [&](const Hold& hold) { return hold.writer == writer && hold.sequence == staged.sequence; });
  apply_next(outbox);
}

/// The update of the step that a save wants is enqueued by now: what comes later on the device sees it.
void ParameterShardMachine::say_held(Outbox& outbox) {
  for (auto& hold : holds_) {
    if (hold.said || hold.step > step_) continue;
    hold.said = true;
    outbox.send(peer(hold.writer), messages::BucketHeld{hold.sequence, config_.bucket});
  }
}

void ParameterShardMachine::apply(const messages::StepDecided& decided, Outbox& outbox) {
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
  say_held(outbox);
}

void ParameterShardMachine::on(const messages::ShardStepped& stepped, Outbox& outbox) {
  if (stepped.step != step_ || stepped_) return;
  stepped_ = true;
  outbox.send(peer(Role::rank_supervisor), messages::ShardUpdated{step_, config_.bucket});
  outbox.send({config_.rank, Role::gradient_bucket, config_.bucket.value}, stepped);
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
  apply_next(outbox);
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
      if (decided_.empty()) return {};
      return fmt::format("save {} to stage the bucket", holds_.front().sequence);
    case State::updating:
      return fmt::format("the optimizer's update of step {}", step_.value);
    case State::gathering:
      return fmt::format("the gather of step {}", step_.value);
  }
  return {};
}

}  // namespace troupe::actors
