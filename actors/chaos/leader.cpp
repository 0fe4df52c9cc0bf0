// The model of the launcher of node 0: what it does for the NodeAgent.
#include <algorithm>
#include <csignal>
#include <utility>

#include "actors/chaos/launchers.hpp"

namespace troupe::actors {

/// A process of another node.
class ChaosLeader::RemoteProcess final : public Process {
 public:
  RemoteProcess(ChaosLeader& leader, int node, int slot, int generation)
      : leader_(leader), node_(node), slot_(slot), generation_(generation) {}

  std::int64_t pid() const override { return 0; }
  void signal(int signal) override { send(signal, false); }
  bool handles(int) const override { return true; }
  void signal_group(int signal) override { send(signal, true); }
  bool is_stopped() const override { return false; }
  bool wake() override {
    send(SIGCONT, false);
    return false;
  }

 private:
  void send(int signal, bool group) const {
    leader_.tell(leader_.nodes_[node_],
                 [slot = slot_, generation = generation_, signal, group](ChaosFollower& to) {
                   to.signal(generation, slot, signal, group);
                 });
  }

  ChaosLeader& leader_;
  int node_;
  int slot_;
  int generation_;
};

core::Result<void> ChaosLeader::begin(const StartGang& gang) {
  has_asked_ = false;
  next_ = next_epoch(gang.generation, gang.slots);
  note_job();
  files_ = std::make_shared<HostFiles>();
  files_->next = next_;
  when_noted([this, next = next_] { world_.monitor.announced(next); });
  world_.say("all are started, in epoch {}, {} ranks", next_.epoch.value, gang.slots.size());
  for (Node& node : nodes_) {
    node.processes.clear();
    node.members.clear();
    send_generation(node, true);
  }
  return {};
}

core::Result<std::unique_ptr<Process>> ChaosLeader::start(ProcessPlace place,
                                                          std::function<void(ExitStatus)> exited) {
  const int node = node_of(place.slot);
  auto& of = nodes_[node];
  const int slot = place.slot - first_slot(node);
  const auto generation = static_cast<int>(next_.epoch.value);
  if (node > 0) {
    of.processes[slot] = {generation, std::move(exited)};
    of.members.erase(slot);
    tell(of, [slot, rank = place.rank.value_or(-1)](ChaosFollower& to) { to.start_process(slot, rank); });
    return std::make_unique<RemoteProcess>(*this, node, slot, generation);
  }
  files_->members.erase(place.slot);
  ChaosRank::Start start{0, place.slot, files_, {}, next_.epoch, {}};
  if (place.rank) start.first = next_;
  const auto id = std::make_shared<int>(0);
  of.processes[slot] = {generation, std::move(exited)};
  start.exited = [this, self = shared_from_this(), slot, id](ExitStatus status) {
    act([this, slot, id, status] {
      auto& local = nodes_.front().processes;
      const auto found = local.find(slot);
      if (found == local.end() || own_[slot] != *id) return;
      const auto told = std::move(found->second.exited);
      local.erase(found);
      told(status);
    });
  };
  auto process = job_.start_rank(std::move(start));
  own_[slot] = *id = process->id();
  when_noted([process] { process->begin(); });
  return std::make_unique<ChaosProcess>(std::move(process));
}

std::unique_ptr<Process> ChaosLeader::adopt(int slot, std::function<void(ExitStatus)> exited) {
  const int node = node_of(slot);
  auto& of = nodes_[node];
  const auto& hello = member(node).hello;
  const int own = slot - first_slot(node);
  const auto at = std::ranges::find(hello.running, own) - hello.running.begin();
  const int generation = hello.started[static_cast<std::size_t>(at)];
  of.processes[own] = {generation, std::move(exited)};
  return std::make_unique<RemoteProcess>(*this, node, own, generation);
}

std::optional<Membership> ChaosLeader::member_in(int slot) {
  const int node = node_of(slot);
  const auto& members = node == 0 ? files_->members : nodes_[node].members;
  const auto found = members.find(node == 0 ? slot : slot - first_slot(node));
  return found == members.end() ? std::nullopt : std::optional(found->second);
}

Standing ChaosLeader::standing_of(const std::vector<int>& slots) {
  if (!world_.keeps_processes) return {};
  const auto standing = actors::standing_of(slots, next_.epoch, [this](int slot) { return member_in(slot); });
  job_.has_formed = job_.has_formed || standing.is_formed;
  return standing;
}

std::vector<bool> ChaosLeader::waiting_of(const std::vector<int>& slots) {
  auto waiting = actors::waiting_of(slots, next_.epoch, [this](int slot) { return member_in(slot); });
  if (world_.has(PlantedBug::hasty_launcher) && waiting.size() > 1) {
    waiting.assign(waiting.size(), true);
    waiting.back() = false;
  }
  return waiting;
}

std::vector<bool> ChaosLeader::standing_by(const std::vector<int>& slots) {
  return actors::standing_by(slots, [this](int slot) { return member_in(slot); });
}

core::Result<void> ChaosLeader::ask_to_wait(const AskToWait&) {
  has_asked_ = true;
  tell_all([epoch = next_.epoch](ChaosFollower& to) { to.wait_for_more(epoch); });
  files_->wait_for_more = next_.epoch;
  return {};
}

core::Result<void> ChaosLeader::admitting(const AdmitSpares& admitted) {
  go_on(next_epoch(admitted.generation, admitted.slots));
  has_asked_ = true;
  return {};
}

core::Result<void> ChaosLeader::replacing(const ReplaceRanks& replaced) {
  for (const auto& loss : replaced.losses) {
    world_.say("slot {} is replaced: {}, {}", loss.ending.slot, name_of(loss.ending.kind),
               to_string(loss.ending.status));
    if (!is_adopting_) blame("L8", loss.ending, "is replaced");
  }
  has_asked_ = false;
  go_on(next_epoch(replaced.generation, replaced.slots));
  return {};
}

core::Result<void> ChaosLeader::forming_again(const FormAgain& again) {
  has_asked_ = false;
  go_on(next_epoch(again.generation, again.slots));
  return {};
}

NextEpoch ChaosLeader::next_epoch(int generation, const std::vector<int>& slots) {
  NextEpoch next{core::Epoch{static_cast<std::uint64_t>(generation) + 1}, "", job_.next_room++, {}};
  std::vector<int> hosts;
  for (const int slot : slots) {
    next.seats.push_back({slot, node_of(slot)});
    hosts.push_back(nodes_[node_of(slot)].host);
  }
  world_.rooms[next.control_port] = std::make_shared<EpochRoom>(world_, next, std::move(hosts));
  ++job_.generations;
  return next;
}

/// Ranks are told as soon as the next launcher would know.
void ChaosLeader::go_on(const NextEpoch& next) {
  next_ = next;
  world_.say("epoch {} with {} ranks", next.epoch.value, next.seats.size());
  if (!world_.has(PlantedBug::same_epoch)) note_job();
  when_noted([this, next] {
    world_.monitor.announced(next);
    files_->next = next;
    files_->changed();
  });
  for (const Node& node : nodes_) send_generation(node, false);
  if (world_.has(PlantedBug::same_epoch)) note_job();
}

void ChaosLeader::send_generation(const Node& node, bool is_anew) {
  tell(node, [next = next_, is_anew](ChaosFollower& to) { to.begin(next, is_anew); });
}

/// Nothing else happens in this launcher until it is on disk.
void ChaosLeader::note_job() {
  if (!world_.setup.journal) return;
  auto record = admission_->record({.job = ChaosJob::kName}, static_cast<int>(next_.epoch.value) - 1,
                                   agent_->machine());
  is_writing_ = true;
  clock_.stop();
  world_.loop.schedule(world_.up_to(std::chrono::milliseconds(15)), "journal",
                       [this, self = shared_from_this(), record = std::move(record)] {
                         if (!is_alive_) return;
                         job_.journal = record;
                         if (--writes_ > 0) return;
                         is_writing_ = false;
                         for (auto& each : std::exchange(outgoing_, {})) each();
                         while (!is_writing_ && !waiting_.empty()) {
                           const auto what = std::move(waiting_.front());
                           waiting_.pop_front();
                           what();
                         }
                         if (!is_writing_ && !world_.is_still[0]) clock_.go_on();
                       });
  ++writes_;
}

void ChaosLeader::act(std::function<void()> what) {
  if (!is_alive_) return;
  if (is_writing_ || !waiting_.empty()) return waiting_.push_back(std::move(what));
  what();
}

void ChaosLeader::tell(const Node& node, const std::function<void(ChaosFollower&)>& what) {
  if (!node.link) return;
  auto send = [this, link = node.link, what] {
    world_.links.send(0, link->host, [link, what] {
      const auto follower = link->follower.lock();
      if (follower && follower->is_alive() && link->is_open_at_follower) what(*follower);
    });
  };
  when_noted(std::move(send));
}

void ChaosLeader::when_noted(std::function<void()> what) {
  const bool waits = is_writing_ && !world_.has(PlantedBug::same_epoch);
  waits ? outgoing_.push_back(std::move(what)) : what();
}

void ChaosLeader::tell_all(const std::function<void(ChaosFollower&)>& what) {
  for (const Node& node : nodes_) tell(node, what);
}

std::optional<std::int64_t> ChaosLeader::committed_step() {
  std::int64_t step = files_->committed;
  for (const Node& node : nodes_) step = std::max(step, node.step);
  return step < 0 ? std::nullopt : std::optional(step);
}

void ChaosLeader::node_gone(int node, bool ends_others) {
  world_.say("node {} is lost{}", node, ends_others ? ", all end" : "");
  if (ends_others) failed(0, {});
}

void ChaosLeader::failed(int, ExitStatus) {
  files_->all_end = true;
  files_->changed();
  tell_all([epoch = next_.epoch](ChaosFollower& to) { to.failed(epoch); });
}

void ChaosLeader::ended(const EndGeneration& end) {
  world_.say("epoch {} has ended", next_.epoch.value);
  for (const auto& each : end.endings)
    world_.say("  rank {} in slot {}: {}, {}", each.rank, each.slot, name_of(each.kind),
               to_string(each.status));
  // One that ended because another did says so itself.
  if (end.cause && end.endings[*end.cause].status.code != kExitFenced)
    blame("S16", end.endings[*end.cause], "is said to have failed first");
  nodes_.front().processes.clear();
  tell_all([epoch = next_.epoch](ChaosFollower& to) { to.ended(epoch); });
}

void ChaosLeader::finished(int exit_code) {
  world_.say("the job ends: {}", exit_code);
  is_over_ = true;
  job_.exit_code = exit_code;
  job_.verdict = agent_->machine().verdict();
  tell_all([](ChaosFollower& to) { to.job_is_over(); });
}

void ChaosLeader::blame(const char* invariant, const Ending& ending, const char* how) {
  const int slot = ending.slot;
  const auto process = job_.ended_in(slot, ending.at);
  const auto host = static_cast<std::size_t>(nodes_[node_of(slot)].host);
  const bool was_hit = job_.is_lenient || world_.was_hit[host] || (process && process->was_hit);
  world_.monitor.blamed(invariant, slot, was_hit, how);
}

}  // namespace troupe::actors
