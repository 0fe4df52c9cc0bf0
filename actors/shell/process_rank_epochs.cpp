// How a process goes from one epoch to the next.
#include <chrono>
#include <mutex>
#include <utility>

#include "actors/shell/process_rank.hpp"
#include "actors/shell/process_rank_state.hpp"
#include "actors/world/exit_status.hpp"
#include "core/disregard.hpp"
#include "core/errors.hpp"
#include "gpu/devices.hpp"
#include "gpu/host/memory.hpp"

namespace troupe::actors {

using messages::Role;

/// A rank whose trainer takes steps has all its groups, so that whatever it waits for ends with the loss of a
/// peer.
void ProcessRank::hear_own(const messages::Envelope& envelope) {
  if (state_->is_member || !std::holds_alternative<messages::StepBegan>(envelope.body)) return;
  state_->is_member = true;
  if (state_->forming) state_->forming->stop();
  declare(Membership::State::training);
  // Where the launcher has lost a node, or its link to it, the ranks there may still answer.
  if (!state_->files || state_->is_one_host()) return;
  constexpr std::chrono::milliseconds kBetweenLooks{200};
  const auto is_over = [files = *state_->files, of = epoch()] { return files.has_epoch_after(of); };
  state_->staying.emplace(is_over, kBetweenLooks, [this] {
    leave_epoch(fmt::format("the launcher has ended epoch {}: it has lost a node", epoch().value));
  });
}

void ProcessRank::watch_forming() {
  constexpr std::chrono::milliseconds kBetweenLooks{2};
  const auto is_over = [files = *state_->files, of = epoch()] { return files.is_over(of); };
  state_->forming.emplace(is_over, kBetweenLooks, [this] {
    leave_epoch(fmt::format("epoch {} ended before it was formed", epoch().value));
  });
}

/// The launcher has gone on to another epoch.
void ProcessRank::leave_epoch(const std::string& why) {
  const core::Error over{core::Errc::peer_lost, why};
  if (state_->network) state_->network->give_up(over);
  // This pretends that rank 0 is lost, which alone tells the others of losses.
  const messages::Address self{rank(), Role::rank_supervisor, 0};
  post({self, self, epoch(), messages::PeerLost{core::Rank{0}, messages::failure_of(over)}});
}

void ProcessRank::declare(Membership::State state) {
  if (!state_->files) return;
  if (const auto told = state_->files->declare_membership({epoch(), state}); !told)
    log(Subsystem::session).say(LogLevel::warning, told.error().message);
  if (state != Membership::State::training) return;
  gpu::ReadyHostMemory().keep(0);  // what was ready for a spare whose rank has less
  if (state_->environment.local_rank == 0)
    core::disregard(state_->files->tell_memory(gpu::large_host_memory()), "spares do without");
}

bool ProcessRank::has_others_standing_by() {
  return state_->files && state_->files->is_asked_to_wait(epoch());
}

bool ProcessRank::may_go_on() const {
  return state_->files.has_value() || state_->options.next_environment;
}

void ProcessRank::keep(std::unique_ptr<Keepsake> kept) {
  state_->kept = std::move(kept);
}

Keepsake* ProcessRank::kept() {
  return state_->kept.get();
}

/// Nothing of the epoch that is over runs on the device any more, which has not failed.
core::Result<void> ProcessRank::settle_device() {
  constexpr std::chrono::seconds kPatience{10};
  if (!state_->device->is_host_memory()) {
    // Ends the process where a communicator cannot be aborted.
    state_->backend.reset();
    state_->host_backend.reset();
  }
  const auto settled = gpu::settle(*state_->device, kPatience);
  if (settled) return {};
  return core::fail(settled.error().code, "this process ends instead of going on in another epoch: {}",
                    settled.error().message);
}

core::Result<void> ProcessRank::form_anew(const core::Error& why) {
  // A large process that was killed is gone for the launcher up to seconds after its connections were closed,
  // where processors are busy. A launcher that gives up says so at once.
  constexpr std::chrono::seconds kPatience{10};
  // A launcher that closes no connection is lost to the others only after a while.
  constexpr std::chrono::seconds kPatienceOverNodes{20};
  // Another rank may not know before that its communicators cannot be aborted.
  constexpr std::chrono::seconds kPatienceOnGpus{30};
  constexpr std::chrono::seconds kPatienceWhereAsked{30};
  if (state_->stage) {
    return core::fail(core::Errc::invalid_argument,
                      "a session is open in this world; destroy it before the next epoch is formed");
  }
  if (exit_code_of(why) != kExitFenced) return tl::unexpected(why);
  if (may_go_on()) TRY(settle_device());
  auto next = state_->environment;
  if (state_->options.next_environment) {
    auto given = state_->options.next_environment(state_->environment);
    if (!given) return tl::unexpected(why);
    next = std::move(*given);
  } else {
    // The launcher does not know yet that a process would stay which has just been started.
    if (!state_->files || (!state_->is_member && !state_->has_come_over)) return tl::unexpected(why);
    declare(state_->is_member ? Membership::State::waiting : Membership::State::given_up);
    const bool is_asked = state_->files->is_asked_to_wait(epoch());
    const bool is_on_host = state_->device->is_host_memory();
    const auto patience = !is_on_host             ? kPatienceOnGpus
                          : state_->is_one_host() ? kPatience
                                                  : kPatienceOverNodes;
    const auto told = state_->files->await_epoch_after(epoch(), is_asked ? kPatienceWhereAsked : patience);
    if (!told || !state_->files->rank_in(*told)) return tl::unexpected(why);
    place_in(*state_->files, *told, next);
  }
  log(Subsystem::session).info("this process goes on in epoch {}: {}", next.epoch.value, why.message);
  state_->log_options.epoch = next.epoch;
  state_->log_options.rank = next.rank;
  auto log = TRY(Log::open(state_->log_options));
  const bool has_other_rank = next.rank != rank();
  // A thread that asks for the waits at the same time reads what this writes.
  std::lock_guard lock(state_->stage_mutex);
  state_->log_before = std::exchange(state_->log, std::move(log));
  state_->environment = std::move(next);
  state_->is_member = false;
  state_->is_used = false;
  state_->has_come_over = true;
  state_->open_record();
  if (has_other_rank) TRY(open_local_storage());
  declare(Membership::State::forming);
  return {};
}

}  // namespace troupe::actors
