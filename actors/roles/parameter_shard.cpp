#include "actors/roles/parameter_shard.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/enum_names.hpp"

namespace troupe::actors {

using messages::Role;

ParameterShardMachine::ParameterShardMachine(ParameterShardConfig config) : config_(config) {}

void ParameterShardMachine::receive(const messages::Envelope& envelope, Outbox& outbox) {
  const auto writer = envelope.from.role == Role::local_writer ? Role::local_writer : Role::checkpoint_writer;
  dispatch(envelope.body, Overloaded{[&](const messages::StepDecided& m) { on(m, outbox); },
                                     [&](const messages::SaveBegan& m) { on(m, writer, outbox); },
                                     [&](const messages::BucketStaged& m) { on(m, writer, outbox); },
                                     [&](const messages::StateRestored& m) { step_ = m.step; },
                                     [&](const messages::UnitWanted& m) { on(m, outbox); },
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
  // A frozen bucket has nothing to change under a save, and the supervisor counts it in every step.
  const bool wanted = config_.trainable && std::any_of(holds_.begin(), holds_.end(),
                                                       [&](const Hold& hold) { return hold.step < step; });
  if (wanted) return;
  const auto decided = std::move(decided_.front());
  decided_.erase(decided_.begin());
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
  collected_ = 0;
  gathers_ = decided.commit && !config_.gather_entries.empty();
  if (config_.trainable) {
    outbox.perform(step_of_shard(decided, config_.bucket));
  }
  // The gather's stream waits for the optimizer's event, so the entry is ready as soon as the update is
  // enqueued.
  for (const auto entry : config_.gather_entries) {
    if (gathers_) outbox.send(peer(Role::conductor), messages::CollectiveReady{step_, entry});
  }
  say_held(outbox);
  gather_wanted(outbox);
  if (config_.trainable) return;
  outbox.send(peer(Role::rank_supervisor), messages::ShardUpdated{step_, config_.bucket});
  publish(outbox);
}

void ParameterShardMachine::on(const messages::ShardStepped& stepped, Outbox& outbox) {
  if (stepped.step != step_ || stepped_) return;
  stepped_ = true;
  outbox.send(peer(Role::rank_supervisor), messages::ShardUpdated{step_, config_.bucket});
  outbox.send({config_.rank, Role::gradient_bucket, config_.bucket.value}, stepped);
  if (gathers_ && collected_ < config_.gather_entries.size()) {
    state_ = State::gathering;
    return;
  }
  publish(outbox);
}

void ParameterShardMachine::on(const messages::UnitWanted& wanted, Outbox& outbox) {
  wanted_.push_back(wanted);
  gather_wanted(outbox);
}

void ParameterShardMachine::gather_wanted(Outbox& outbox) {
  while (!wanted_.empty() && wanted_.front().step.value <= step_.value + 1) {
    outbox.send(peer(Role::conductor),
                messages::CollectiveReady{wanted_.front().step, wanted_.front().entry});
    wanted_.erase(wanted_.begin());
  }
}

void ParameterShardMachine::on(const messages::CollectiveDone& done, Outbox& outbox) {
  if (done.failure.failed) return;
  const auto& gather = config_.gather_entries;
  if (std::find(gather.begin(), gather.end(), done.entry) == gather.end()) {
    outbox.send(peer(Role::trainer), messages::UnitGathered{done.step, done.entry, config_.bucket});
    return;
  }
  if (done.step != step_ || collected_ == gather.size()) return;
  collected_ += 1;
  if (stepped_ && collected_ == gather.size()) publish(outbox);
}

void ParameterShardMachine::publish(Outbox& outbox) {
  state_ = State::gathered;
  outbox.send(peer(Role::trainer), messages::Published{step_, config_.bucket});
  apply_next(outbox);
}

std::string_view ParameterShardMachine::state() const {
  static constexpr auto kNames = core::enum_names<State>("gathered", "updating", "gathering");
  return kNames[state_];
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
