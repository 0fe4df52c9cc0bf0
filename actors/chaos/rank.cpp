#include "actors/chaos/rank.hpp"

#include <algorithm>
#include <csignal>
#include <utility>

namespace troupe::actors {

void EpochRoom::arrive(int rank, const std::shared_ptr<ChaosRank>& process) {
  members_[rank] = process;
  // What connects before rank 0 listens tries again until it does.
  world_.links.send(host_of(rank), host_of(0), [self = shared_from_this(), rank] {
    self->joined_.insert(rank);
    self->welcome_if_complete();
  });
}

void EpochRoom::welcome_if_complete() {
  const auto first = member(0);
  if (is_welcome_ || static_cast<int>(joined_.size()) < size() || !first) return;
  first->act([self = shared_from_this(), first] {
    if (first->room_ != self || std::exchange(self->is_welcome_, true)) return;
    for (int rank = 0; rank < self->size(); ++rank) self->tell(0, rank, [](ChaosRank& to) { to.welcome(); });
  });
}

void EpochRoom::tell(int from, int to, std::function<void(ChaosRank&)> what) {
  world_.links.send(host_of(from), host_of(to), [self = shared_from_this(), to, what = std::move(what)] {
    const auto process = self->member(to);
    if (!process) return;
    process->act([self, process, what] {
      if (process->room_ == self || self->world_.has(PlantedBug::foreign_words)) what(*process);
    });
  });
}

void EpochRoom::tell_others(int from, const std::function<void(ChaosRank&)>& what) {
  for (int rank = 0; rank < size(); ++rank) {
    if (rank != from) tell(from, rank, what);
  }
}

ChaosRank::ChaosRank(ChaosWorld& world, int id, Start start)
    : world_(world), id_(id), start_(std::move(start)), numbers_(world.monitor.undisturbed(0)) {}

void ChaosRank::begin() {
  start_.files->readers.push_back(weak_from_this());
  // A program starts, and opens what it needs.
  later(std::chrono::milliseconds(30) + world_.up_to(std::chrono::milliseconds(120)), [this] {
    if (start_.first) return enter(*start_.first);
    next_.epoch = start_.over;
    state_ = State::standing_by;
    declare(Membership::State::stands_by);
    look_soon();
  });
}

void ChaosRank::act(std::function<void()> what) {
  if (state_ == State::ended) return;
  if (is_stopped_ || is_held_ || !waiting_.empty()) return waiting_.push_back(std::move(what));
  what();
}

void ChaosRank::later(std::chrono::nanoseconds delay, std::function<void()> what) {
  world_.loop.schedule(delay, "rank", [self = shared_from_this(), what = std::move(what), of = visits_] {
    if (self->visits_ != of) return;
    self->act([self, what, of] {
      if (self->visits_ == of) what();
    });
  });
}

void ChaosRank::run_waiting() {
  while (state_ != State::ended && !is_stopped_ && !is_held_ && !waiting_.empty()) {
    const auto what = std::move(waiting_.front());
    waiting_.pop_front();
    what();
  }
}

void ChaosRank::signal(int signal) {
  if (state_ == State::ended) return;
  if (signal == SIGSTOP) {
    is_stopped_ = true;
    world_.loop.schedule(HostLinks::kSilence, "silence", [self = shared_from_this(), of = ++stops_] {
      if (!self->is_stopped_ || self->stops_ != of || !self->room_) return;
      const auto room = self->room_;
      for (int rank = 0; rank < room->size(); ++rank) {
        const auto peer = room->member(rank);
        if (!peer || peer == self) continue;
        peer->act([peer, room, from = self->rank_] {
          if (peer->room_ == room) peer->peer_is_silent(from);
        });
      }
    });
  } else if (signal == SIGCONT) {
    if (!std::exchange(is_stopped_, false)) return;
    if (must_end_) return end({0, SIGTERM});
    world_.loop.schedule({}, "goes on", [self = shared_from_this()] { self->run_waiting(); });
  } else if (signal == SIGKILL) {
    // What a whole host stands for is done when it goes on.
    if (!is_held_) return end({0, SIGKILL});
    world_.loop.schedule(std::chrono::milliseconds(100), "signal",
                         [self = shared_from_this()] { self->signal(SIGKILL); });
  } else if (is_stopped_ || is_held_) {
    must_end_ = true;
  } else {
    later(world_.up_to(std::chrono::milliseconds(20)), [this, signal] { end({0, signal}); });
  }
}

void ChaosRank::hold(bool still) {
  is_held_ = still;
  if (still || state_ == State::ended) return;
  if (must_end_ && !is_stopped_) return end({0, SIGTERM});
  world_.loop.schedule({}, "goes on", [self = shared_from_this()] { self->run_waiting(); });
}

void ChaosRank::vanish() {
  if (state_ == State::ended) return;
  leave_room(false);
  state_ = State::ended;
  ended_at_ = world_.loop.now();
  world_.monitor.ended(id_);
}

void ChaosRank::take_apart() {
  vanish();
  waiting_.clear();
  start_.exited = nullptr;
}

void ChaosRank::end(ExitStatus status) {
  if (state_ == State::ended) return;
  world_.say("the process in slot {} ends: {}", slot(), to_string(status));
  if (room_) {
    room_->tell_others(
        rank_, [from = rank_, finished = has_finished_](ChaosRank& to) { to.peer_closed(from, finished); });
  }
  leave_room(has_finished_);
  state_ = State::ended;
  ended_at_ = world_.loop.now();
  world_.monitor.ended(id_);
  world_.links.send(host(), host(), [exited = start_.exited, status] { exited(status); });
}

void ChaosRank::declare(Membership::State state) {
  start_.files->members[slot()] = {next_.epoch, state};
  if (start_.files->written) start_.files->written();
}

void ChaosRank::look_soon() {
  auto most = std::chrono::nanoseconds(std::chrono::milliseconds(1));
  if (state_ == State::forming) most = std::chrono::milliseconds(2);
  if (state_ == State::training) most = std::chrono::milliseconds(200);
  later(world_.up_to(most), [this] { look(); });
}

void ChaosRank::look() {
  const auto& files = *start_.files;
  const bool is_later = files.next && files.next->epoch > next_.epoch;
  const auto has_seat = [&] {
    return std::ranges::find(files.next->seats, slot(), &Seat::slot) != files.next->seats.end();
  };
  switch (state_) {
    case State::standing_by:
      if (is_later && has_seat()) {
        has_come_over_ = true;
        return enter(*files.next);
      }
      if (files.all_end) end({1, 0});
      return;
    case State::waiting:
      if (is_later && has_seat()) {
        has_come_over_ = true;
        return enter(*files.next);
      }
      if (is_later || files.all_end) end({kExitFenced, 0});
      return;
    case State::forming:
      if (is_later || files.all_end) lose("the epoch ended before it was formed");
      return;
    case State::training:
      if (is_later && world_.setup.nodes > 1) lose("the launcher has ended the epoch");
      return;
    default:
      return;
  }
}

void ChaosRank::enter(const NextEpoch& next) {
  ++visits_;
  world_before_ = static_cast<int>(next_.seats.size());
  next_ = next;
  rank_ = static_cast<int>(std::ranges::find(next_.seats, slot(), &Seat::slot) - next_.seats.begin());
  is_member_ = false;
  wishes_ = false;
  state_ = State::forming;
  if (has_come_over_) declare(Membership::State::forming);
  world_.monitor.entered(next_);
  room_ = world_.room_of(next_);
  for (int rank = 0; rank < room_->size(); ++rank) {
    if (room_->host_of(rank) == host()) continue;
    watches_.push_back(world_.links.watch(room_->host_of(rank), host(), [this, rank, of = visits_] {
      if (visits_ == of)
        act([this, rank, of] {
          if (visits_ == of) peer_is_silent(rank);
        });
    }));
  }
  constexpr std::chrono::seconds kPatience{60};
  later(kPatience, [this] {
    if (state_ == State::forming && place_ < 0) lose("not all ranks have joined");
  });
  later(world_.up_to(std::chrono::milliseconds(3)), [this] {
    room_->arrive(rank_, shared_from_this());
    look();
  });
}

void ChaosRank::leave_room(bool) {
  for (const int watch : std::exchange(watches_, {})) world_.links.unwatch(watch);
  room_.reset();
  ++visits_;
  words_.clear();
  heard_ = nullptr;
  place_ = -1;
  snapshots_.clear();
  asked_.clear();
  saves_over_.clear();
  finished_.clear();
  save_.reset();
  after_save_ = nullptr;
  set_saving(false);
  set_deciding(false);
  set_training(false);
}

void ChaosRank::peer_closed(int from, bool has_finished) {
  if (has_finished) {
    finished_.insert(from);
  } else if (!finished_.contains(from)) {
    lose("a peer has closed its connection");
  }
}

void ChaosRank::peer_is_silent(int from) {
  if (!finished_.contains(from)) lose("nothing was heard of a peer");
}

void ChaosRank::reset_connections(int other) {
  const auto room = room_;
  for (int rank = 0; room && rank < room->size(); ++rank) {
    const auto peer = room->member(rank);
    if (room->host_of(rank) != other || !peer || peer->is_alive() || finished_.contains(rank)) continue;
    return act([this, room, rank] {
      if (room_ == room) peer_closed(rank, false);
    });
  }
}

void ChaosRank::lose(const std::string& why) {
  if (state_ != State::forming && state_ != State::training) return;
  world_.say("slot {}, rank {} of epoch {} after {} steps: {}", slot(), rank_, next_.epoch.value, over_, why);
  room_->tell_others(rank_, [from = rank_](ChaosRank& to) { to.peer_closed(from, false); });
  const auto before = wishes_;
  leave_room(false);
  wishes_ = before;
  state_ = State::leaving;
  later(std::chrono::milliseconds(1) + world_.up_to(std::chrono::milliseconds(8)),
        [this] { session_is_over(); });
}

void ChaosRank::session_is_over() {
  const bool may_stay = world_.keeps_processes && (is_member_ || has_come_over_);
  if (!may_stay) return end({kExitFenced, 0});
  state_ = State::waiting;
  declare(is_member_ ? Membership::State::waiting : Membership::State::given_up);
  const bool is_asked = start_.files->wait_for_more == next_.epoch;
  const auto patience =
      is_asked ? std::chrono::seconds(30) : std::chrono::seconds(world_.setup.nodes > 1 ? 20 : 2);
  later(patience, [this] {
    if (state_ == State::waiting) end({kExitFenced, 0});
  });
  look_soon();
}

void ChaosRank::set_saving(bool saving) {
  if (std::exchange(is_saving_, saving) != saving) world_.monitor.saving += saving ? 1 : -1;
}

void ChaosRank::set_training(bool training) {
  if (std::exchange(is_training_, training) != training) world_.monitor.training += training ? 1 : -1;
}

void ChaosRank::set_deciding(bool deciding) {
  if (std::exchange(is_deciding_, deciding) != deciding) world_.monitor.deciding += deciding ? 1 : -1;
}

}  // namespace troupe::actors
