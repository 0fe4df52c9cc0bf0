// How the NodeAgent deals with nodes that are lost, and with nodes that join.
#include <algorithm>
#include <csignal>

#include "actors/launch/node_agent.hpp"
#include "core/errors.hpp"

namespace troupe::actors {

int NodeAgentMachine::node_of(int slot) const {
  const auto after = std::ranges::upper_bound(nodes_, slot, {}, &Node::first_slot);
  return static_cast<int>(after - nodes_.begin()) - 1;
}

int NodeAgentMachine::most_ranks() const {
  int ranks = 0;
  for (const Node& node : nodes_) ranks += node.share.ranks;
  return ranks;
}

NodeEffects NodeAgentMachine::node_lost(int node, std::chrono::nanoseconds now, Standing others) {
  NodeEffects effects;
  Node& lost = nodes_[node];
  lost.is_present = lost.is_clear = false;
  newcomers_.erase(node);
  const auto is_there = [&](int slot) { return node_of(slot) == node; };
  std::erase_if(spares_, is_there);
  std::erase_if(free_slots_, is_there);
  if (state_ == State::waiting && waits_for_nodes_ && can_begin()) {
    effects.push_back(CancelDeadline{});
    launch(now, effects);
  }
  if (state_ != State::watching && state_ != State::stopping) return effects;
  if (others.is_formed) settle(effects);
  std::vector<Ending> endings;
  for (int rank = 0; rank < world(); ++rank) {
    const int slot = slots_[rank];
    if (!is_there(slot) || !is_running(rank)) continue;
    running_[rank] = false;
    --alive_;
    endings.push_back({rank, generation_, Ending::Kind::lost, {}, now, false, false, slot});
  }
  if (endings.empty()) {
    // The last spare of a job that has ended may have been there.
    if (is_dismissed_) end_when_all_have(effects);
    return effects;
  }
  endings_.insert(endings_.end(), endings.begin(), endings.end());
  silent_since_.reset();
  if (state_ == State::watching && !mend(endings, others, now, effects)) stop(SIGTERM, effects);
  end_when_all_have(effects);
  return effects;
}

NodeEffects NodeAgentMachine::adopt(const Adopted& adopted, std::chrono::nanoseconds now) {
  CHECK(state_ == State::starting, "a gang is adopted instead of being started");
  NodeEffects effects;
  state_ = State::watching;
  generation_ = adopted.generation;
  slots_.items() = adopted.slots;
  running_.assign(slots_.size(), true);
  alive_ = world();
  launched_ = now;
  spares_ = adopted.running;
  for (const int slot : slots_) spares_.erase(slot);
  // These were to be started once the ranks had formed.
  for (int slot = nodes_.front().slots(); slot < slot_count(); ++slot) {
    if (!adopted.running.contains(slot) && !rank_of(slot)) free_slots_.insert(slot);
  }
  newcomers_.insert(0);
  std::vector<Ending> lost;
  for (int rank = 0; rank < world(); ++rank) {
    const int slot = slots_[rank];
    if (adopted.running.contains(slot)) continue;
    running_[rank] = false;
    --alive_;
    lost.push_back({rank, generation_, Ending::Kind::lost, {}, now, false, false, slot});
  }
  endings_ = lost;
  if (lost.empty()) {
    form_again(now, effects);
  } else if (!mend(lost, {true, true}, now, effects)) {
    // Running processes are ended before others are started.
    alive_ = 0;
    spares_.clear();
    generation_ = config_.first_generation;
    launch(now, effects);
  }
  return effects;
}

NodeEffects NodeAgentMachine::node_ready(int node, std::chrono::nanoseconds now) {
  NodeEffects effects;
  Node& ready = nodes_[node];
  const bool has_come = !ready.is_present;
  ready.is_present = ready.is_clear = true;
  if (state_ == State::waiting && waits_for_nodes_ && can_begin()) {
    effects.push_back(CancelDeadline{});
    launch(now, effects);
  } else if (state_ == State::watching && has_come && config_.in_place) {
    newcomers_.insert(node);
  }
  return effects;
}

NodeEffects NodeAgentMachine::node_added(NodeShare share, std::chrono::nanoseconds now) {
  nodes_.push_back({share, slot_count(), false, false});
  return node_ready(static_cast<int>(nodes_.size()) - 1, now);
}

/// Waits while somebody is being replaced. A node that the job could do without costs no restart.
NodeEffects NodeAgentMachine::take_in() {
  NodeEffects effects;
  if (is_rebuilding_ || state_ != State::watching || is_dismissed_ || alive_ < world()) return effects;
  for (const int each : newcomers_) {
    const Node& node = nodes_[each];
    if (!may_lack_nodes() && restarts_ == config_.max_restarts) continue;
    restarts_ += may_lack_nodes() ? 0 : 1;
    for (int slot = node.first_slot; slot < node.first_slot + node.slots(); ++slot) {
      if (!rank_of(slot) && !spares_.contains(slot)) start_spare(slot, effects);
    }
  }
  newcomers_.clear();
  return effects;
}

/// The generation begins when the nodes that are left have cleared away, and are enough.
bool NodeAgentMachine::can_begin() const {
  int present = 0;
  int ranks = 0;
  for (const Node& node : nodes_) {
    if (!node.is_present) continue;
    if (!node.is_clear) return false;
    ++present;
    ranks += node.share.ranks;
  }
  return present >= config_.fewest_nodes && ranks >= config_.fewest_ranks;
}

std::vector<int> NodeAgentMachine::absent_nodes() const {
  std::vector<int> absent;
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    if (!nodes_[node].is_present || !nodes_[node].is_clear) absent.push_back(static_cast<int>(node));
  }
  return absent;
}

void NodeAgentMachine::begin_when_ready(std::chrono::nanoseconds now, NodeEffects& effects) {
  if (can_begin()) return launch(now, effects);
  state_ = State::waiting;
  waits_for_nodes_ = true;
  effects.push_back(ArmDeadline{config_.node_patience});
}

}  // namespace troupe::actors
