// The model of the launcher of node 0: how the others come, and are lost.
#include <algorithm>
#include <limits>
#include <utility>

#include "actors/chaos/launchers.hpp"

namespace troupe::actors {

ChaosLeader::ChaosLeader(ChaosJob& job) : job_(job), world_(job.world), clock_(world_.loop) {}

void ChaosLeader::start() {
  patience_ = clock_.arm(ChaosJob::kPatience, [this] { give_up(1); });
  if (world_.setup.nodes == 1) return all_are_here();
  call_for_the_last();
}

void ChaosLeader::die(bool with_host) {
  if (!is_alive_) return;
  is_alive_ = false;
  clock_.stop();
  for (auto& [host, guest] : guests_) {
    Node closing;
    closing.link = guest.first;
    if (!with_host) close(closing);
  }
  for (Node& node : nodes_) {
    if (!node.link) continue;
    if (!with_host) close(node);
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

void ChaosLeader::close(Node& node) {
  node.link->is_open_at_leader = false;
  world_.links.send(0, node.link->host, [link = node.link] {
    const auto follower = link->follower.lock();
    if (follower && follower->is_alive()) follower->lost(link.get());
  });
}

int ChaosLeader::slots_per_node() const {
  return world_.setup.ranks + world_.setup.spares;
}

int ChaosLeader::node_with(const LauncherLink* link) const {
  const auto found = std::ranges::find_if(nodes_, [&](const Node& each) { return each.link.get() == link; });
  return found == nodes_.end() ? -1 : static_cast<int>(found - nodes_.begin());
}

void ChaosLeader::hello(const std::shared_ptr<LauncherLink>& link, const LauncherHello& hello) {
  const bool is_shunned = agent_ && world_.has(PlantedBug::shuns_late);
  if (is_over_ || is_shunned) return refuse(link, false);
  agent_ ? take_back(link, hello) : take_in(link, hello);
}

void ChaosLeader::refuse(const std::shared_ptr<LauncherLink>& link, bool may_try_again) {
  world_.say("host {} is refused{}", link->host, may_try_again ? " for now" : "");
  world_.links.send(0, link->host, [link, may_try_again] {
    const auto follower = link->follower.lock();
    if (follower && follower->is_alive() && link->is_open_at_follower) follower->refused(may_try_again);
  });
}

void ChaosLeader::take_in(const std::shared_ptr<LauncherLink>& link, const LauncherHello& hello) {
  guests_[link->host] = {link, hello};
  const auto here = guests_.size() + 1;
  const bool are_all_back = job_.journal && here == job_.journal->job.shares.size();
  if (static_cast<int>(here) == world_.setup.nodes || are_all_back) return all_are_here();
  call_for_the_last();
}

void ChaosLeader::call_for_the_last() {
  clock_.cancel(std::exchange(last_call_, 0));
  const int fewest = world_.setup.fewest_nodes > 0 ? world_.setup.fewest_nodes : world_.setup.nodes;
  if (static_cast<int>(guests_.size()) + 1 >= fewest)
    last_call_ = clock_.arm(ChaosJob::kLastCall, [this] { all_are_here(); });
}

void ChaosLeader::all_are_here() {
  clock_.cancel(std::exchange(patience_, 0));
  clock_.cancel(std::exchange(last_call_, 0));
  nodes_.resize(guests_.size() + 1);
  const auto& setup = world_.setup;
  NodeAgentConfig config;
  int node = 0;
  for (Node& each : nodes_) {
    each.first_slot = node++ * slots_per_node();
    config.shares.push_back({setup.ranks, setup.spares});
  }
  // Those that were here keep their numbers.
  std::set<int> free;
  for (int number = 1; number < static_cast<int>(nodes_.size()); ++number) free.insert(number);
  for (const bool known : {true, false}) {
    for (auto& [host, guest] : guests_) {
      const bool is_known = guest.second.has_been_here && free.contains(guest.second.node);
      if (is_known != known || guest.first == nullptr) continue;
      const int number = is_known ? guest.second.node : *free.begin();
      free.erase(number);
      nodes_[static_cast<std::size_t>(number)].host = host;
      nodes_[static_cast<std::size_t>(number)].hello = guest.second;
      attach(number, std::exchange(guest.first, nullptr));
    }
  }
  guests_.clear();
  config.nodes = static_cast<int>(nodes_.size());
  config.ranks = config.nodes * setup.ranks;
  config.fewest_nodes = setup.fewest_nodes;
  config.fewest_ranks = setup.fewest_ranks;
  config.max_restarts =
      world_.has(PlantedBug::never_gives_up) ? std::numeric_limits<int>::max() : setup.max_restarts;
  config.in_place = setup.in_place;
  config.node_patience = ChaosJob::kPatience;
  // What leaves a job without progress for good is not what is simulated here.
  config.no_progress_limit = 100;
  if (job_.journal) {
    config.first_generation = job_.journal->job.generation + 1;
    config.restarts_before = job_.journal->restarts;
  }
  agent_.emplace(config, clock_, *this);
  const auto found = adopted();
  if (!found) return agent_->start();
  next_.epoch = core::Epoch{static_cast<std::uint64_t>(found->generation) + 1};
  world_.say("the job of generation {} goes on", found->generation);
  is_adopting_ = true;
  agent_->adopt(*found);
  is_adopting_ = false;
}

std::optional<Adopted> ChaosLeader::adopted() const {
  if (!job_.journal || !world_.setup.in_place) return std::nullopt;
  std::vector<FoundNode> nodes;
  for (const Node& each : nodes_)
    nodes.push_back({{world_.setup.ranks, world_.setup.spares}, each.first_slot, each.hello.running});
  return adoptable(job_.journal->job, nodes);
}

void ChaosLeader::attach(int node, const std::shared_ptr<LauncherLink>& link) {
  world_.say("host {} is node {}", link->host, node);
  auto& of = nodes_[static_cast<std::size_t>(node)];
  of.link = link;
  of.host = link->host;
  of.watch = world_.links.watch(link->host, 0, [this, self = weak_from_this(), of = link.get()] {
    const auto alive = self.lock();
    if (!alive) return;
    act([this, of] {
      const int lost_node = node_with(of);
      if (lost_node > 0) close(nodes_[static_cast<std::size_t>(lost_node)]);
      lost(of);
    });
  });
  tell(of, [node, first_slot = of.first_slot](ChaosFollower& to) { to.welcomed(node, first_slot); });
}

void ChaosLeader::take_back(const std::shared_ptr<LauncherLink>& link, const LauncherHello& hello) {
  const auto& setup = world_.setup;
  const bool may_change = setup.fewest_nodes > 0 && setup.fewest_nodes < setup.nodes;
  const int count = static_cast<int>(nodes_.size());
  // Where nodes stay the same, whatever starts launchers says which is which.
  int node = !hello.has_been_here ? (may_change ? -1 : link->host) : hello.node;
  const auto is_of_another = [&] {
    if (node < 1 || node >= count) return false;
    const auto& present = nodes_[static_cast<std::size_t>(node)].link;
    return present && present->follower.lock() != link->follower.lock();
  };
  if (may_change && is_of_another()) node = -1;
  for (int each = 1; node < 0 && each < count; ++each) {
    if (!nodes_[static_cast<std::size_t>(each)].link) node = each;
  }
  const bool is_known = node > 0 && node < count;
  if (!is_known && may_change && count < setup.nodes) return add(link, hello);
  if (!is_known) {
    const auto first = too_many_.try_emplace(link->host, clock_.now()).first->second;
    return refuse(link, clock_.now() < first + HostLinks::kSilence + std::chrono::seconds(1));
  }
  auto& of = nodes_[static_cast<std::size_t>(node)];
  if (of.link) {
    if (of.link->follower.lock() != link->follower.lock()) return refuse(link, true);
    of.link->is_open_at_leader = false;
    lose(node);
    if (is_over_) return refuse(link, false);
  }
  of.hello = hello;
  attach(node, link);
  send_generation(of, true);
  agent_->node_ready(node);
}

void ChaosLeader::add(const std::shared_ptr<LauncherLink>& link, const LauncherHello& hello) {
  const int node = static_cast<int>(nodes_.size());
  nodes_.emplace_back();
  nodes_.back().first_slot = node * slots_per_node();
  nodes_.back().hello = hello;
  attach(node, link);
  send_generation(nodes_.back(), true);
  agent_->node_added({world_.setup.ranks, world_.setup.spares});
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
  std::erase_if(guests_, [&](const auto& each) { return each.second.first.get() == link; });
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
  for (const auto& [at, guest] : guests_) {
    if (is_dead(guest.first)) dead.push_back(guest.first.get());
  }
  for (const Node& each : nodes_) {
    if (is_dead(each.link)) dead.push_back(each.link.get());
  }
  for (const auto* link : dead) lost(link);
}

void ChaosLeader::lose(int node) {
  auto& of = nodes_[static_cast<std::size_t>(node)];
  world_.links.unwatch(of.watch);
  of.link.reset();
  of.processes.clear();
  of.members.clear();
  if (!is_over_ && agent_) agent_->node_lost(node);
}

void ChaosLeader::give_up(int exit_code) {
  is_over_ = true;
  job_.exit_code = exit_code;
  job_.verdict = "not all nodes came";
}

}  // namespace troupe::actors
