#include <fmt/format.h>

#include <csignal>
#include <utility>

#include "actors/chaos/launchers.hpp"

namespace troupe::actors {

ChaosJob::ChaosJob(ChaosWorld& of) : world(of), followers(static_cast<std::size_t>(of.setup.nodes)) {}

ChaosJob::~ChaosJob() {
  leaked_.clear();
  for (const auto& each : leaders) each->take_apart();
  for (const auto& each : all_followers) each->take_apart();
  for (const auto& each : world.processes) each->take_apart();
}

void ChaosJob::start() {
  for (int host = 0; host < world.setup.nodes; ++host) start_launcher(host);
}

void ChaosJob::start_launcher(int host) {
  if (is_over() || world.is_down[static_cast<std::size_t>(host)]) return;
  if (host == 0) {
    if (leader && leader->is_alive()) return;
    leader = leaders.emplace_back(std::make_shared<ChaosLeader>(*this));
    return leader->start();
  }
  auto& follower = followers[host];
  if (follower && follower->is_alive()) return;
  follower = all_followers.emplace_back(std::make_shared<ChaosFollower>(*this, host));
  follower->start();
}

LauncherHello ChaosJob::hello_of(int host) {
  const auto& setup = world.setup;
  LauncherHello hello;
  hello.host = fmt::format("host{}", host);
  hello.instance = fmt::format("launcher{}", ++launchers);
  hello.node = setup.node_ranks ? host : -1;
  hello.is_numbered = setup.node_ranks;
  hello.ranks = setup.ranks;
  hello.fewest_ranks = setup.fewest_ranks > 0 ? setup.fewest_ranks : setup.ranks;
  hello.spares = setup.spares;
  return hello;
}

void ChaosJob::kill_launcher(int host, bool with_host) {
  for (const auto& process : world.processes) {
    if (process->host() != host || !process->is_alive()) continue;
    process->was_hit = true;
    if (with_host) process->vanish();
  }
  if (host == 0 && leader) leader->die(with_host);
  if (host > 0 && followers[host]) followers[host]->die(with_host);
}

void ChaosJob::reset_connections(int host) {
  // At the next beat of each.
  const auto soon = [this](std::function<void()> what) {
    world.loop.schedule(world.up_to(std::chrono::seconds(1)), "reset", std::move(what));
  };
  if (host > 0 && leader) soon([of = leader, host] { of->act([of, host] { of->reset_connections(host); }); });
  for (const auto& follower : followers) {
    if (host > 0 || !follower || !follower->is_alive() || follower->link() == nullptr) continue;
    soon([follower, link = follower->link()] { follower->lost(link.get()); });
  }
  for (const auto& each : world.processes) {
    if (each->is_alive() && each->host() != host) soon([each, host] { each->reset_connections(host); });
  }
}

HostClock* ChaosJob::clock_of(int host) {
  if (host == 0) return leader && leader->is_alive() ? &leader->clock() : nullptr;
  const auto& follower = followers[host];
  return follower && follower->is_alive() ? &follower->clock() : nullptr;
}

std::shared_ptr<ChaosRank> ChaosJob::start_rank(ChaosRank::Start start) {
  const int host = start.host;
  bool is_free = true;
  for (const auto& each : world.processes) {
    // One that its launcher has just killed is gone before another has started.
    is_free = is_free && !(each->is_alive() && each->slot() == start.slot && each->host() == host);
  }
  world.monitor.started(start.slot, is_free);
  auto rank =
      std::make_shared<ChaosRank>(world, static_cast<int>(world.processes.size()) + 1, std::move(start));
  world.processes.push_back(rank);
  return rank;
}

std::shared_ptr<ChaosRank> ChaosJob::process_in(int slot) const {
  for (auto each = world.processes.rbegin(); each != world.processes.rend(); ++each) {
    if ((*each)->slot() == slot) return *each;
  }
  return nullptr;
}

std::shared_ptr<ChaosRank> ChaosJob::ended_in(int slot, std::chrono::nanoseconds before) const {
  for (auto each = world.processes.rbegin(); each != world.processes.rend(); ++each) {
    if ((*each)->slot() == slot && !(*each)->is_alive() && (*each)->ended_at() <= before) return *each;
  }
  return nullptr;
}

std::shared_ptr<ChaosRank> ChaosJob::first_rank() const {
  for (auto each = world.processes.rbegin(); each != world.processes.rend(); ++each) {
    if ((*each)->is_alive() && (*each)->rank() == 0) return *each;
  }
  return nullptr;
}

ChaosPhase ChaosJob::phase() const {
  if (!leader || !leader->is_alive() || !leader->agent()) {
    return generations == 0        ? ChaosPhase::starting
           : world.keeps_processes ? ChaosPhase::rebuilding
                                   : ChaosPhase::restarting;
  }
  const auto& agent = leader->agent()->machine();
  if (agent.state() != "watching") return generations == 0 ? ChaosPhase::starting : ChaosPhase::restarting;
  if (leader->has_asked()) return ChaosPhase::joining;
  if (agent.is_rebuilding()) return ChaosPhase::rebuilding;
  if (world.monitor.deciding > 0) return ChaosPhase::deciding;
  if (world.monitor.saving > 0) return ChaosPhase::saving;
  if (world.monitor.training > 0) return ChaosPhase::computing;
  return has_formed || generations > 1 ? ChaosPhase::restarting : ChaosPhase::starting;
}

}  // namespace troupe::actors
