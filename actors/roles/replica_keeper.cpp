#include "actors/roles/replica_keeper.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>
#include <utility>

#include "core/checkpoint/copy_manifest.hpp"
#include "core/enum_names.hpp"
#include "core/hash.hpp"
#include "core/step_count.hpp"

namespace troupe::actors {

using core::Errc;
using messages::Failure;
using messages::Role;

ReplicaKeeperMachine::ReplicaKeeperMachine(ReplicaKeeperConfig config)
    : config_(std::move(config)), free_credits_(config_.credits) {
  // The last is taken first.
  std::iota(free_credits_.rbegin(), free_credits_.rend(), 0U);
}

void ReplicaKeeperMachine::receive(const messages::Envelope& envelope, Outbox& outbox) {
  dispatch(envelope.body, Overloaded{[&](const messages::ReplicaSeed& m) {
                                       if (!seed_) seed_ = m.seed;
                                       begin_next(outbox);
                                     },
                                     [&](const messages::SaveAnnounced& m) { on(m, outbox); },
                                     [&](const messages::CopyDirectoryMade& m) { on(m, outbox); },
                                     [&](const messages::FilesDurable& m) { on(m, outbox); },
                                     [&](const messages::SaveFailed& m) { on(m, outbox); },
                                     [&](const messages::CopySealed& m) { on(m, outbox); },
                                     [&](const messages::ExchangeBegan& m) { on(m, outbox); },
                                     [&](const messages::RoundRead& m) { on(m, outbox); },
                                     [&](const messages::RoundShared& m) { on(m, outbox); },
                                     [&](const messages::RoundWritten& m) { on(m, outbox); },
                                     [&](const messages::ExchangeClosed& m) { on(m, outbox); },
                                     [&](const messages::LocalSaveOver& m) { on(m, outbox); },
                                     [&](const messages::CopiesTidied& m) {
                                       if (is_current(m.sequence, State::tidying)) conclude(outbox);
                                     },
                                     [&](const messages::RetrieveBegan& m) { on(m, outbox); }});
}

std::unique_ptr<Machine> ReplicaKeeperMachine::successor(const messages::Failure& why,
                                                         const messages::Envelope* heard,
                                                         Outbox& outbox) const {
  if (running_) return nullptr;
  auto next = std::make_unique<ReplicaKeeperMachine>(config_);
  next->state_ = state_;
  next->seed_ = seed_;
  next->save_ = save_;
  next->waiting_ = waiting_;
  next->last_sequence_ = last_sequence_;
  next->early_ends_ = early_ends_;
  next->exchange_ = exchange_;
  const bool is_copying = state_ == State::copying;
  if (is_copying) next->say_ready(0, why, outbox);
  if (state_ == State::tidying) next->tidy(outbox);
  // It knows enough of what its copy has come to; anything else it has to hear.
  const auto is_of_copy = [&](const auto& body) {
    using Body = std::remove_cvref_t<decltype(body)>;
    return std::is_same_v<Body, messages::CopyDirectoryMade> ||
           std::is_same_v<Body, messages::FilesDurable> || std::is_same_v<Body, messages::SaveFailed> ||
           std::is_same_v<Body, messages::CopySealed>;
  };
  if (heard != nullptr && !std::visit(is_of_copy, static_cast<const messages::AnyMessage&>(heard->body)))
    next->receive(*heard, outbox);
  return next;
}

bool ReplicaKeeperMachine::is_current(std::uint64_t sequence, State state) const {
  return save_ && save_->announced.sequence == sequence && state_ == state;
}

void ReplicaKeeperMachine::on(const messages::SaveAnnounced& announced, Outbox& outbox) {
  const auto last = waiting_.empty() ? last_sequence_ : waiting_.back().sequence;
  if (announced.sequence <= last) return;
  waiting_.push_back(announced);
  begin_next(outbox);
}

void ReplicaKeeperMachine::begin_next(Outbox& outbox) {
  while (!save_ && !running_ && seed_ && !waiting_.empty()) {
    auto announced = std::move(waiting_.front());
    waiting_.pop_front();
    const auto sequence = last_sequence_ = announced.sequence;
    const auto step = core::steps_through(announced.step);
    const auto early = early_ends_.extract(sequence);
    early_ends_.erase(early_ends_.begin(), early_ends_.upper_bound(sequence));
    if (early) {
      release(early.mapped(), outbox);
      outbox.send(peer(Role::trainer), early.mapped());
      continue;
    }
    save_ = Save{std::move(announced), {step, core::hash64(fmt::format("{}", sequence), *seed_)}, {}};
    state_ = State::copying;
    outbox.arm(kDeadline, config_.deadline);
    outbox.perform(MakeCopyDirectory{sequence, save_->name});
  }
}

void ReplicaKeeperMachine::on(const messages::CopyDirectoryMade& made, Outbox& outbox) {
  if (!is_current(made.sequence, State::copying)) return;
  if (made.failure.failed) return say_ready(0, made.failure, outbox);
  outbox.send(
      peer(Role::local_writer),
      messages::SavePlanned{made.sequence, unfinished_path_of(save_->name, config_.rank), config_.pieces});
}

void ReplicaKeeperMachine::on(const messages::FilesDurable& durable, Outbox& outbox) {
  if (!is_current(durable.sequence, State::copying)) return;
  outbox.perform(SealCopy{durable.sequence, save_->name, save_->announced.topology, save_->announced.common,
                          durable.hashes});
}

void ReplicaKeeperMachine::on(const messages::SaveFailed& failed, Outbox& outbox) {
  if (is_current(failed.sequence, State::copying)) say_ready(0, failed.failure, outbox);
}

void ReplicaKeeperMachine::on(const messages::CopySealed& sealed, Outbox& outbox) {
  if (is_current(sealed.sequence, State::copying)) say_ready(sealed.bytes, sealed.failure, outbox);
}

void ReplicaKeeperMachine::timer(TimerId, Outbox& outbox) {
  if (state_ == State::tidying) return conclude(outbox);
  if (state_ != State::copying) return;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(config_.deadline).count();
  say_ready(0, {true, Errc::timeout, fmt::format("its own copy was not whole within {} s", seconds)}, outbox);
}

void ReplicaKeeperMachine::say_ready(std::uint64_t bytes, Failure failure, Outbox& outbox) {
  state_ = State::copied;
  outbox.cancel(kDeadline);
  outbox.send(coordinator(), messages::CopyReady{save_->announced.sequence, config_.rank,
                                                 save_->announced.step, bytes, std::move(failure)});
}

void ReplicaKeeperMachine::on(const messages::ExchangeBegan& begun, Outbox& outbox) {
  if (!is_current(begun.sequence, State::copied)) return;
  state_ = State::receiving;
  if (begun.bytes.size() != config_.clique.size()) {
    say_held({true, Errc::internal,
              fmt::format("an exchange of {} copies was asked for, the clique has {} ranks",
                          begun.bytes.size(), config_.clique.size())},
             outbox);
    return;
  }
  begin_exchange(save_->name, core::plan_replication(config_.clique, begun.bytes), outbox);
}

void ReplicaKeeperMachine::begin_exchange(const core::CopyName& name,
                                          std::vector<core::CopyTransfer> transfers, Outbox& outbox) {
  running_ = Running{{config_.clique, std::move(transfers), config_.chunk_bytes}, 0, 0, false, {}};
  running_->rounds = running_->plan.rounds();
  exchange_ += 1;
  outbox.perform(OpenExchange{exchange_, name, running_->plan});
  go_on(outbox);
}

void ReplicaKeeperMachine::go_on(Outbox& outbox) {
  while (!running_->lost && running_->begun < running_->rounds && !free_credits_.empty()) {
    outbox.perform(ReadRound{exchange_, running_->begun, free_credits_.back()});
    free_credits_.pop_back();
    running_->begun += 1;
  }
  const bool is_over = running_->lost || running_->begun == running_->rounds;
  if (is_over && free_credits_.size() == config_.credits) outbox.perform(CloseExchange{exchange_});
}

void ReplicaKeeperMachine::on(const messages::RoundRead& read, Outbox& outbox) {
  if (!is_running(read.exchange)) return;
  if (running_->lost) return give_back(read.credit, {}, outbox);
  // A part that could not be read is shared too: the others wait for the round, and its hash tells them.
  if (read.failure.failed && !running_->failure.failed) running_->failure = read.failure;
  outbox.perform(ShareRound{read.exchange, read.round, read.credit});
}

void ReplicaKeeperMachine::on(const messages::RoundShared& shared, Outbox& outbox) {
  if (!is_running(shared.exchange)) return;
  if (shared.failure.failed) {
    running_->lost = true;
    give_back(shared.credit, shared.failure, outbox);
    return;
  }
  outbox.perform(WriteRound{shared.exchange, shared.round, shared.credit});
}

void ReplicaKeeperMachine::on(const messages::RoundWritten& written, Outbox& outbox) {
  if (is_running(written.exchange)) give_back(written.credit, written.failure, outbox);
}

void ReplicaKeeperMachine::give_back(std::uint32_t credit, const Failure& failure, Outbox& outbox) {
  if (failure.failed && !running_->failure.failed) running_->failure = failure;
  free_credits_.push_back(credit);
  go_on(outbox);
}

void ReplicaKeeperMachine::on(const messages::ExchangeClosed& closed, Outbox& outbox) {
  if (!is_running(closed.exchange)) return;
  auto failure = running_->failure.failed ? running_->failure : closed.failure;
  running_.reset();
  if (state_ == State::serving) {
    state_ = State::empty;
    outbox.send(peer(Role::trainer), messages::RetrieveOver{std::move(failure)});
    begin_next(outbox);
  } else if (save_->over) {
    tidy(outbox);
  } else {
    say_held(std::move(failure), outbox);
  }
}

void ReplicaKeeperMachine::say_held(Failure failure, Outbox& outbox) {
  state_ = State::held;
  outbox.send(coordinator(),
              messages::CopiesHeld{save_->announced.sequence, config_.rank, std::move(failure)});
}

void ReplicaKeeperMachine::on(const messages::LocalSaveOver& over, Outbox& outbox) {
  if (over.sequence > last_sequence_) {
    early_ends_[over.sequence] = over;
    // It waits for the one before, whose disk may not answer; no update may wait for that too.
    const bool is_announced = !waiting_.empty() && over.sequence <= waiting_.back().sequence;
    if (is_announced) release(over, outbox);
    return;
  }
  if (!save_ || save_->announced.sequence != over.sequence || save_->over) return;
  save_->over = over;
  release(over, outbox);
  if (!running_) tidy(outbox);
}

void ReplicaKeeperMachine::release(const messages::LocalSaveOver& over, Outbox& outbox) const {
  outbox.send(peer(Role::local_writer),
              messages::SaveOver{over.sequence, over.step, {}, over.bytes, {}, over.failure});
}

void ReplicaKeeperMachine::tidy(Outbox& outbox) {
  state_ = State::tidying;
  outbox.arm(kDeadline, config_.deadline);
  if (save_->over->failure.failed) {
    outbox.perform(DiscardCopies{save_->announced.sequence, save_->name});
  } else {
    outbox.perform(TidyCopies{save_->announced.sequence, save_->name});
  }
}

void ReplicaKeeperMachine::conclude(Outbox& outbox) {
  outbox.cancel(kDeadline);
  outbox.send(peer(Role::trainer), *save_->over);
  state_ = save_->over->failure.failed ? State::empty : State::kept;
  save_.reset();
  begin_next(outbox);
}

void ReplicaKeeperMachine::on(const messages::RetrieveBegan& begun, Outbox& outbox) {
  if (save_ || running_) {
    outbox.send(peer(Role::trainer), messages::RetrieveOver{{true, Errc::unavailable,
                                                             "copies are retrieved before the first save"}});
    return;
  }
  state_ = State::serving;
  begin_exchange(begun.name, begun.transfers, outbox);
}

std::string_view ReplicaKeeperMachine::state() const {
  static constexpr auto kNames = core::enum_names<State>("empty", "copying", "copied", "receiving", "held",
                                                         "tidying", "kept", "serving");
  return kNames[state_];
}

std::string ReplicaKeeperMachine::waiting_for() const {
  if (running_) {
    std::vector<int> members;
    for (auto member : config_.clique) members.push_back(member.value);
    return fmt::format("the clique [{}]: {} of {} rounds have begun", fmt::join(members, ", "),
                       running_->begun, running_->rounds);
  }
  if (!save_) return {};
  const auto sequence = save_->announced.sequence;
  if (state_ == State::copying) return fmt::format("local save {}: its own copy to be whole", sequence);
  if (state_ == State::tidying) return fmt::format("local save {}: older copies to go", sequence);
  return fmt::format("local save {}: the replica coordinator's word", sequence);
}

}  // namespace troupe::actors
