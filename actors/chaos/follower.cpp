// The model of the launcher of a node other than 0.
#include <algorithm>
#include <csignal>
#include <utility>

#include "actors/chaos/launchers.hpp"

namespace troupe::actors {

namespace {

constexpr std::chrono::milliseconds kLookAgainAfter{200};
constexpr std::chrono::seconds kConnectPatience{5};
constexpr std::chrono::seconds kStay{15};
constexpr std::chrono::seconds kLongestGrace{5};
constexpr std::chrono::milliseconds kBetweenLooks{50};

}  // namespace

ChaosProcess::~ChaosProcess() {
  rank_->signal(SIGKILL);
}

bool ChaosProcess::wake() {
  if (!rank_->is_stopped()) return was_stopped_ = false;
  if (!std::exchange(was_stopped_, true)) return false;
  rank_->signal(SIGCONT);
  return true;
}

ChaosFollower::ChaosFollower(ChaosJob& job, int host)
    : job_(job), world_(job.world), host_(host), clock_(world_.loop), hello_(job.hello_of(host)) {}

void ChaosFollower::start() {
  give_up_at_ = clock_.now() + ChaosJob::kPatience;
  look();
}

void ChaosFollower::die(bool with_host) {
  if (state_ == State::over) return;
  state_ = State::over;
  if (link_ && !with_host) close();
  link_.reset();
  world_.links.unwatch(watch_);
  clock_.stop();
  processes_.clear();
}

void ChaosFollower::close() {
  link_->is_open_at_follower = false;
  world_.links.send(host_, 0, [link = link_] {
    const auto leader = link->leader.lock();
    if (leader) leader->act([leader, link] { leader->lost(link.get()); });
  });
}

void ChaosFollower::look() {
  again_ = 0;
  if (state_ != State::looking) return;
  const auto leader = job_.leader;
  const bool answers = world_.links.is_open_both_ways(host_, 0) && !world_.is_down[0] && !world_.is_still[0];
  if (!answers) {
    again_ = clock_.arm(kConnectPatience, [this] { not_found(false); });
    return;
  }
  if (!leader || !leader->is_alive()) return not_found(true);
  const auto link = std::make_shared<LauncherLink>();
  link->leader = leader;
  link->follower = weak_from_this();
  link->host = host_;
  met(link);
}

void ChaosFollower::met(const std::shared_ptr<LauncherLink>& link) {
  link_ = link;
  untold_.clear();
  world_.links.unwatch(watch_);
  watch_ = world_.links.watch(0, host_, [this, of = link.get()] { lost(of); });
  hello_.running.clear();
  hello_.started.clear();
  bool do_all_stay = true;
  for (std::size_t slot = 0; slot < processes_.size(); ++slot) {
    if (!processes_[slot].is_running) continue;
    const auto found = files().members.find(first_slot_ + static_cast<int>(slot));
    do_all_stay &= found != files().members.end() && found->second.state != Membership::State::left;
    hello_.running.push_back(static_cast<int>(slot));
    hello_.started.push_back(processes_[slot].generation);
  }
  if (!do_all_stay) hello_.running.clear();
  if (!do_all_stay) hello_.started.clear();
  world_.links.send(host_, 0, [this, self = shared_from_this(), link, hello = hello_] {
    const auto to = link->leader.lock();
    if (to && to->is_alive()) return to->act([to, link, hello] { to->hello(link, hello); });
    // Nobody has that connection any more.
    world_.links.send(0, host_, [this, self, link] { lost(link.get()); });
  });
}

void ChaosFollower::not_found(bool is_refused) {
  clock_.cancel(std::exchange(again_, 0));
  if (link_) close();
  link_.reset();
  if (has_job() && is_refused && !world_.setup.journal) return end();
  if (clock_.now() >= give_up_at_) return end();
  again_ = clock_.arm(kLookAgainAfter, [this] { look(); });
}

void ChaosFollower::refused(bool may_try_again) {
  if (!may_try_again) return end();
  not_found(false);
}

void ChaosFollower::welcomed(int node, int first_slot) {
  if (!has_job() || hello_.node != node) {
    processes_.clear();
    untold_.clear();
  }
  hello_.node = node;
  hello_.job = ChaosJob::kName;
  first_slot_ = first_slot;
  state_ = State::following;
  clock_.cancel(std::exchange(again_, 0));
  clock_.cancel(std::exchange(kill_, 0));
  told_step_ = -1;
  for (auto& each : processes_) each.told.reset();
  for (auto& each : std::exchange(untold_, {})) tell(std::move(each));
  if (look_ == 0) look_at_members();
}

void ChaosFollower::begin(const NextEpoch& next, bool is_anew) {
  world_.say("host {} hears of epoch {}{}", host_, next.epoch.value, is_anew ? ", anew" : "");
  next_ = next;
  if (is_anew) {
    processes_.clear();
    processes_.resize(static_cast<std::size_t>(world_.setup.ranks + world_.setup.spares));
    files_ = std::make_shared<HostFiles>();
    files_->next = next;
    return;
  }
  files_->next = next;
  if (world_.has(PlantedBug::two_views) && next.seats.size() > 1)
    std::swap(files_->next->seats.front(), files_->next->seats.back());
  files_->changed();
}

void ChaosFollower::start_process(int slot, int rank) {
  if (slot >= static_cast<int>(processes_.size()) || !next_) return;
  auto& started = processes_[slot];
  started = {};
  files_->members.erase(first_slot_ + slot);
  started.generation = static_cast<int>(next_->epoch.value);
  const auto watched = std::weak_ptr(shared_from_this());
  ChaosRank::Start start{host_, first_slot_ + slot, files_, {}, next_->epoch, {}};
  if (rank >= 0) start.first = next_;
  const auto id = std::make_shared<int>(0);
  start.exited = [this, slot, id, self = shared_from_this()](ExitStatus status) {
    const auto place = static_cast<std::size_t>(slot);
    if (state_ == State::over || place >= processes_.size()) return;
    const auto& process = processes_[place].process;
    if (process && process->pid() == *id) exited(slot, status);
  };
  auto process = job_.start_rank(std::move(start));
  *id = process->id();
  process->begin();
  started.process = std::make_unique<ChaosProcess>(std::move(process));
  started.is_running = true;
  if (look_ == 0) look_at_members();
}

void ChaosFollower::wait_for_more(core::Epoch epoch) {
  files_->wait_for_more = epoch;
}

void ChaosFollower::tell(const std::function<void(ChaosLeader&, int host)>& what) {
  if (!link_) return;
  world_.links.send(host_, 0, [link = link_, what] {
    const auto leader = link->leader.lock();
    if (leader) {
      leader->act([leader, link, what] {
        if (link->is_open_at_leader) what(*leader, link->host);
      });
    }
  });
}

void ChaosFollower::look_at_members() {
  look_ = 0;
  if (state_ != State::following || !has_ranks()) return;
  tell_members();
  look_ = clock_.arm(kBetweenLooks, [this] { look_at_members(); });
}

void ChaosFollower::tell_members() {
  std::map<int, Membership> changed;
  for (std::size_t slot = 0; slot < processes_.size(); ++slot) {
    auto& each = processes_[slot];
    const auto found = files().members.find(first_slot_ + static_cast<int>(slot));
    if (!each.process || found == files().members.end() || each.told == found->second) continue;
    each.told = found->second;
    changed[static_cast<int>(slot)] = found->second;
  }
  if (changed.empty() && told_step_ == files().committed) return;
  told_step_ = files().committed;
  tell([changed, step = told_step_](ChaosLeader& leader, int host) { leader.declared(host, changed, step); });
}

bool ChaosFollower::has_ranks() const {
  return std::ranges::any_of(processes_, &OwnProcess::is_running);
}

void ChaosFollower::exited(int slot, ExitStatus status) {
  auto& ended = processes_[slot];
  ended.is_running = false;
  if (state_ == State::following) {
    tell_members();
    int said = slot;
    if (world_.has(PlantedBug::blames_next) && !status.success()) {
      for (std::size_t other = 0; other < processes_.size(); ++other) {
        if (processes_[other].is_running) said = static_cast<int>(other);
      }
    }
    const auto generation = processes_[said].generation;
    tell([=](ChaosLeader& leader, int host) { leader.exited(host, generation, said, status); });
  } else if (state_ == State::looking) {
    untold_.emplace_back([=, generation = ended.generation](ChaosLeader& leader, int host) {
      leader.exited(host, generation, slot, status);
    });
  } else if (state_ == State::cut_off && !has_ranks()) {
    clock_.cancel(kill_);
    kill_ = clock_.arm({}, [this] { all_have_ended(); });
  }
}

void ChaosFollower::signal(int generation, int slot, int signal, bool group) {
  if (slot >= static_cast<int>(processes_.size())) return;
  auto& each = processes_[slot];
  if (!each.process || each.generation != generation) return;
  if (world_.has(PlantedBug::says_ended) && signal == SIGTERM && each.is_running) {
    job_.leak(std::move(each.process));
    return exited(slot, {0, signal});
  }
  if (!group && signal == SIGCONT) {
    each.process->wake();
    return;
  }
  each.process->signal(signal);
}

void ChaosFollower::failed(core::Epoch epoch) {
  if (!next_ || next_->epoch != epoch) return;
  files_->all_end = true;
  files_->changed();
}

void ChaosFollower::ended(core::Epoch epoch) {
  processes_.clear();
  tell([epoch](ChaosLeader& leader, int host) { leader.cleared(host, epoch); });
}

void ChaosFollower::job_is_over() {
  end();
}

void ChaosFollower::lost(const LauncherLink* link) {
  if (!link_ || link_.get() != link || state_ == State::over) return;
  world_.say("host {} has lost node 0", host_);
  // The other end is closed too, once it hears of it.
  close();
  world_.links.unwatch(watch_);
  link_.reset();
  if (state_ == State::looking) return not_found(false);
  give_up_at_ = clock_.now() + ChaosJob::kPatience;
  if (world_.has(PlantedBug::deaf_launcher)) return;
  if (world_.setup.journal && world_.keeps_processes && has_ranks()) {
    state_ = State::looking;
    kill_ = clock_.arm(kStay, [this] { stop_ranks(); });
    return look();
  }
  stop_ranks();
}

void ChaosFollower::stop_ranks() {
  kill_ = 0;
  world_.say("host {} stops its ranks", host_);
  // What was done to node 0 is why this one is lost to it.
  if (world_.was_hit[0]) world_.was_hit[static_cast<std::size_t>(host_)] = true;
  clock_.cancel(std::exchange(again_, 0));
  if (link_) {
    close();
    link_.reset();
  }
  state_ = State::cut_off;
  if (!has_ranks()) return all_have_ended();
  if (world_.has(PlantedBug::keeps_ranks)) {
    for (auto& each : processes_) job_.leak(std::move(each.process));
    return all_have_ended();
  }
  files_->all_end = true;
  files_->changed();
  const auto signal_all = [this](int signal) {
    for (auto& each : processes_) {
      if (each.is_running) each.process->signal(signal);
    }
  };
  signal_all(SIGTERM);
  signal_all(SIGCONT);
  kill_ = clock_.arm(kLongestGrace, [this, signal_all] {
    signal_all(SIGKILL);
    kill_ = clock_.arm(kLongestGrace, [this] { all_have_ended(); });
  });
}

void ChaosFollower::all_have_ended() {
  clock_.cancel(std::exchange(kill_, 0));
  processes_.clear();
  state_ = State::looking;
  look();
}

void ChaosFollower::end() {
  if (state_ == State::over) return;
  const auto self = shared_from_this();
  die(false);
  // Whatever has started it starts it again, unless the job has ended.
  world_.loop.schedule(std::chrono::seconds(1), "engine", [self] {
    if (self->job_.followers[self->host_] == self) self->job_.start_launcher(self->host_);
  });
}

}  // namespace troupe::actors
