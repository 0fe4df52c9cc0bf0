// The model of the launcher of node 0: how the others come, and are lost.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "actors/chaos/launchers.hpp"

namespace troupe::actors {

ChaosLeader::ChaosLeader(ChaosJob& job) : job_(job), world_(job.world), clock_(world_.loop) {}

void ChaosLeader::start() {
  const auto& setup = world_.setup;
  const int fewest = setup.fewest_nodes > 0 ? setup.fewest_nodes : setup.nodes;
  auto own = job_.hello_of(0);
  admission_.emplace(NodeAdmission::Terms{ChaosJob::kName, setup.nodes, fewest,
                                          HostLinks::kSilence + std::chrono::seconds(1)},
                     own, own.host, job_.journal);
  patience_ = clock_.arm(ChaosJob::kPatience, [this] { give_up(1); });
  if (setup.nodes == 1) return all_are_here();
  call_for_the_last();
}

void ChaosLeader::die(bool with_host) {
  if (!is_alive_) return;
  is_alive_ = false;
  clock_.stop();
  for (const auto& [id, guest] : guests_) {
    world_.links.unwatch(guest.watch);
    if (!with_host) close(guest.link);
  }
  for (Node& node : nodes_) {
    if (!node.link) continue;
    if (!with_host) close(node.link);
    world_.links.unwatch(node.watch);
    node.link.reset();
  }
  agent_.reset();
}

void ChaosLeader::take_apart() {
  is_alive_ = false;
  agent_.reset();
  waiting_.clear();
  outgoing_.clear();
  nodes_.clear();
  guests_.clear();
}

void ChaosLeader::close(const std::shared_ptr<LauncherLink>& link) {
  link->is_open_at_leader = false;
  world_.links.send(0, link->host, [link] {
    const auto follower = link->follower.lock();
    if (follower && follower->is_alive()) follower->lost(link.get());
  });
}

const NodeTable::Member& ChaosLeader::member(int node) const {
  return admission_->table().members()[static_cast<std::size_t>(node)];
}

int ChaosLeader::node_with(const LauncherLink* link) const {
  const auto found = std::ranges::find_if(nodes_, [&](const Node& each) { return each.link.get() == link; });
  return found == nodes_.end() ? -1 : static_cast<int>(found - nodes_.begin());
}

void ChaosLeader::hello(const std::shared_ptr<LauncherLink>& link, const LauncherHello& hello) {
  const bool is_shunned = agent_ && world_.has(PlantedBug::shuns_late);
  if (is_over_ || is_shunned) return refuse(link, false);
  auto answer = admission_->admit(hello, hello.host, clock_.now());
  if (const auto* again = std::get_if<NodeAdmission::Reconnected>(&answer)) {
    nodes_[again->node].link->is_open_at_leader = false;
    lose(again->node);
    if (is_over_) return refuse(link, false);
    answer = admission_->admit(hello, hello.host, clock_.now());
  }
  if (const auto* refusal = std::get_if<NodeAdmission::Refusal>(&answer)) {
    refuse(link, refusal->may_try_again);
  } else if (const auto* guest = std::get_if<NodeAdmission::Guest>(&answer)) {
    guests_[guest->id] = {link, watch(link)};
    admission_->are_all_here() ? all_are_here() : call_for_the_last();
  } else if (const auto* joined = std::get_if<NodeAdmission::Joined>(&answer)) {
    take_back(*joined, link);
  }
}

void ChaosLeader::refuse(const std::shared_ptr<LauncherLink>& link, bool may_try_again) {
  world_.say("host {} is refused{}", link->host, may_try_again ? " for now" : "");
  // There is one launcher per host, and a place for each.
  if (!may_try_again && !is_over_)
    world_.monitor.violate("L7", fmt::format("the launcher of host {} is refused for good", link->host));
  world_.links.send(0, link->host, [link, may_try_again] {
    const auto follower = link->follower.lock();
    if (follower && follower->is_alive() && link->is_open_at_follower) follower->refused(may_try_again);
  });
}

void ChaosLeader::call_for_the_last() {
  clock_.cancel(std::exchange(last_call_, 0));
  if (admission_->table().is_enough())
    last_call_ = clock_.arm(std::chrono::milliseconds(world_.setup.last_call_ms), [this] { all_are_here(); });
}

/// Whether nodes are numbered from 0 on; if not, nothing that follows has a meaning.
bool ChaosLeader::check_numbers() {
  std::vector<std::pair<int, int>> nodes;
  for (const auto& each : admission_->table().members()) {
    const bool is_back = !each.hello.job.empty() && world_.has(PlantedBug::old_numbers);
    nodes.emplace_back(is_back ? each.hello.node : each.node, each.first_slot);
  }
  const bool are_right = world_.monitor.numbered(nodes);
  if (!are_right) give_up(1);
  return are_right;
}

void ChaosLeader::all_are_here() {
  clock_.cancel(std::exchange(patience_, 0));
  clock_.cancel(std::exchange(last_call_, 0));
  admission_->begin();
  if (!check_numbers()) return;
  nodes_.resize(static_cast<std::size_t>(admission_->table().size()));
  const auto guests = std::exchange(guests_, {});
  for (const auto& each : admission_->table().members()) {
    if (each.id == 0) continue;
    world_.links.unwatch(guests.at(each.id).watch);
    attach(each.node, guests.at(each.id).link);
  }
  const auto& setup = world_.setup;
  world_.keeps_processes = setup.in_place && admission_->can_mend(setup.max_restarts);
  NodeAgentConfig config;
  config.max_restarts =
      world_.has(PlantedBug::never_gives_up) ? std::numeric_limits<int>::max() : setup.max_restarts;
  config.in_place = world_.keeps_processes;
  config.node_patience = ChaosJob::kPatience;
  // What leaves a job without progress for good is not what is simulated here.
  config.no_progress_limit = 100;
  agent_.emplace(admission_->agent_config(config), clock_, *this);
  const auto found = world_.keeps_processes ? admission_->adopted() : std::nullopt;
  if (!found) return agent_->start();
  next_.epoch = core::Epoch{static_cast<std::uint64_t>(found->generation) + 1};
  world_.say("the job of generation {} goes on", found->generation);
  is_adopting_ = true;
  agent_->adopt(*found);
  is_adopting_ = false;
}

/// A connection of which nothing is heard is lost.
int ChaosLeader::watch(const std::shared_ptr<LauncherLink>& link) {
  return world_.links.watch(link->host, 0, [this, self = weak_from_this(), of = std::weak_ptr(link)] {
    const auto alive = self.lock();
    if (!alive) return;
    act([this, of] {
      const auto lost_link = of.lock();
      if (!lost_link || !lost_link->is_open_at_leader) return;
      close(lost_link);
      lost(lost_link.get());
    });
  });
}

void ChaosLeader::attach(int node, const std::shared_ptr<LauncherLink>& link) {
  world_.say("host {} is node {}", link->host, node);
  auto& of = nodes_[node];
  of.link = link;
  of.host = link->host;
  of.watch = watch(link);
  tell(of, [node, first = first_slot(node)](ChaosFollower& to) { to.welcomed(node, first); });
}

void ChaosLeader::take_back(const NodeAdmission::Joined& joined, const std::shared_ptr<LauncherLink>& link) {
  if (!check_numbers()) return;
  const auto& hello = member(joined.node).hello;
  if (joined.is_new) nodes_.emplace_back();
  attach(joined.node, link);
  send_generation(nodes_[joined.node], true);
  joined.is_new ? agent_->node_added({hello.ranks, hello.spares}) : agent_->node_ready(joined.node);
}

void ChaosLeader::exited(int host, int generation, int slot, ExitStatus status) {
  const auto of =
      std::ranges::find_if(nodes_, [&](const Node& each) { return each.link && each.host == host; });
  if (of == nodes_.end()) return;
  const auto found = of->processes.find(slot);
  if (found == of->processes.end() || found->second.generation != generation) return;
  const auto told = std::move(found->second.exited);
  of->processes.erase(found);
  told(status);
}

void ChaosLeader::declared(int host, const std::map<int, Membership>& members, std::int64_t step) {
  const auto of =
      std::ranges::find_if(nodes_, [&](const Node& each) { return each.link && each.host == host; });
  if (of == nodes_.end()) return;
  for (const auto& [slot, member] : members) of->members[slot] = member;
  of->step = std::max(of->step, step);
}

void ChaosLeader::cleared(int host, core::Epoch epoch) {
  if (epoch != next_.epoch || !agent_) return;
  const auto of =
      std::ranges::find_if(nodes_, [&](const Node& each) { return each.link && each.host == host; });
  if (of != nodes_.end()) agent_->node_ready(static_cast<int>(of - nodes_.begin()));
}

void ChaosLeader::lost(const LauncherLink* link) {
  const auto guest =
      std::ranges::find_if(guests_, [&](const auto& each) { return each.second.link.get() == link; });
  if (guest != guests_.end()) {
    world_.links.unwatch(guest->second.watch);
    admission_->leave(guest->first);
    guests_.erase(guest);
    return call_for_the_last();
  }
  const int node = node_with(link);
  if (node > 0) lose(node);
}

/// Those to launchers that died with the host.
void ChaosLeader::reset_connections(int host) {
  std::vector<const LauncherLink*> dead;
  const auto is_dead = [&](const std::shared_ptr<LauncherLink>& link) {
    const auto follower = link ? link->follower.lock() : nullptr;
    return link && link->host == host && (!follower || !follower->is_alive());
  };
  for (const auto& [id, guest] : guests_) {
    if (is_dead(guest.link)) dead.push_back(guest.link.get());
  }
  for (const Node& each : nodes_) {
    if (is_dead(each.link)) dead.push_back(each.link.get());
  }
  for (const auto* link : dead) lost(link);
}

void ChaosLeader::lose(int node) {
  auto& of = nodes_[node];
  world_.links.unwatch(of.watch);
  of.link.reset();
  of.processes.clear();
  of.members.clear();
  admission_->lose(node);
  if (!is_over_ && agent_) agent_->node_lost(node);
}

void ChaosLeader::give_up(int exit_code) {
  is_over_ = true;
  job_.exit_code = exit_code;
  job_.verdict = "not all nodes came";
}

}  // namespace troupe::actors
