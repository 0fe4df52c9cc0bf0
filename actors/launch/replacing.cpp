// How the NodeAgent mends a generation whose other ranks stay.
#include <algorithm>
#include <csignal>

#include "actors/launch/node_agent.hpp"

namespace troupe::actors {

std::optional<int> NodeAgentMachine::rank_of(int slot) const {
  for (const int rank : slots_.indices()) {
    if (slots_[rank] == slot) return rank;
  }
  return std::nullopt;
}

/// One for each of those that were lost; none where they cannot be mended. The others may still form the
/// generation that another loss has begun: they leave it for the next.
std::vector<Remedy> NodeAgentMachine::remedies(const std::vector<Ending>& lost, Standing others) const {
  const auto has_own_reason = [](const Ending& ending) {
    const ExitStatus status = ending.status;
    return ending.kind == Ending::Kind::lost || (!status.success() && status.code != kExitFenced);
  };
  const auto count = static_cast<int>(lost.size());
  const bool is_possible = config_.in_place && alive_ == world() - count && others.all_stay &&
                           std::ranges::all_of(lost, has_own_reason) && stop_signal_ == 0 &&
                           !code_that_forbids_restart();
  if (!is_possible) return {};
  std::vector<Remedy> found;
  auto spares = spares_.size();
  int ranks = world();
  int restarts = restarts_;
  for (const Ending& each : lost) {
    if (spares > 0) {
      --spares;
      found.push_back(Remedy::spare);
    } else if (config_.fewest_ranks > 0 && ranks > config_.fewest_ranks) {
      // What comes to be started later joins them.
      --ranks;
      found.push_back(Remedy::fewer_ranks);
    } else if (nodes_[node_of(each.slot)].is_present && restarts < config_.max_restarts && world() > 1) {
      ++restarts;
      found.push_back(Remedy::start_again);
    } else {
      return {};
    }
  }
  return found;
}

/// Whether what was lost is mended while the others stay; or was so often that all are stopped.
bool NodeAgentMachine::mend(const std::vector<Ending>& lost, Standing others, std::chrono::nanoseconds now,
                            NodeEffects& effects) {
  const auto how = remedies(lost, others);
  if (how.empty()) return false;
  replace(lost, how, now, effects);
  return true;
}

/// One on the same node, if there is one.
int NodeAgentMachine::spare_for(int slot) const {
  const auto near = std::ranges::find(spares_, node_of(slot), [this](int spare) { return node_of(spare); });
  return near == spares_.end() ? *spares_.begin() : *near;
}

void NodeAgentMachine::replace(const std::vector<Ending>& lost, const std::vector<Remedy>& remedies,
                               std::chrono::nanoseconds now, NodeEffects& effects) {
  if (!is_counted_) count_failure();
  is_counted_ = true;
  if (makes_no_progress() || quick_failures_ > 1) return stop(SIGTERM, effects);
  ReplaceRanks replaced;
  for (std::size_t i = 0; i < lost.size(); ++i) {
    replaced.losses.push_back({lost[i], remedies[i]});
    if (remedies[i] != Remedy::spare) continue;
    const int spare = spare_for(lost[i].slot);
    spares_.erase(spare);
    slots_[lost[i].rank] = spare;
  }
  // Ranks move down, so the last comes first.
  for (std::size_t i = lost.size(); i-- > 0;) {
    if (remedies[i] == Remedy::start_again) {
      ++restarts_;
      is_paid_ = true;
    } else if (nodes_[node_of(lost[i].slot)].is_present) {
      free_slots_.insert(lost[i].slot);
    }
    if (remedies[i] == Remedy::fewer_ranks) {
      slots_.erase(lost[i].rank);
      running_.erase(lost[i].rank);
    } else {
      running_[lost[i].rank] = true;
      ++alive_;
    }
  }
  begin_generation(now);
  replaced.generation = generation_;
  replaced.slots = slots();
  effects.push_back(std::move(replaced));
}

/// Which those that run go on in.
void NodeAgentMachine::begin_generation(std::chrono::nanoseconds now) {
  ++generation_;
  is_rebuilding_ = true;
  has_asked_ = false;
  silent_rank_.reset();
  silent_since_.reset();
  seen_stopped_.clear();
  parted_since_.reset();
  standing_since_.reset();
  launched_ = now;
}

/// The network between them was cut for a while, or they gave each other up.
void NodeAgentMachine::form_again(std::chrono::nanoseconds now, NodeEffects& effects) {
  if (!is_counted_) count_failure();
  is_counted_ = true;
  if (makes_no_progress() || quick_failures_ > 1) return stop(SIGTERM, effects);
  begin_generation(now);
  effects.push_back(FormAgain{generation_, slots()});
}

NodeEffects NodeAgentMachine::waited_for(const std::vector<bool>& waiting, std::chrono::nanoseconds now) {
  NodeEffects effects;
  std::vector<int> others;
  for (int rank = 0; rank < world(); ++rank) {
    const auto place = static_cast<std::size_t>(rank);
    if (place >= waiting.size() || !waiting[place]) others.push_back(rank);
  }
  const bool are_alive = state_ == State::watching && alive_ == world() && world() > 1;
  const bool have_parted = are_alive && config_.in_place && others.empty() && !has_asked_;
  const bool is_lost = are_alive && others.size() == 1;
  if (!is_lost) silent_since_.reset();
  if (!have_parted) parted_since_.reset();
  if (has_asked_ && state_ == State::watching && alive_ == world() && others.empty()) {
    admit(now, effects);
  } else if (have_parted) {
    parted_since_ = parted_since_.value_or(now);
    if (now - *parted_since_ >= config_.cause_window) form_again(now, effects);
  } else if (is_lost && !silent_rank_) {
    silent_since_ = silent_since_.value_or(now);
    const bool is_stopped = !has_asked_ && seen_stopped_.contains(others.front());
    const auto window = has_asked_ ? config_.wait_window : config_.cause_window;
    if (!is_stopped && now - *silent_since_ < window) return effects;
    silent_rank_ = others.front();
    effects.push_back(SignalRank{*silent_rank_, SIGKILL, true, false, slots_[*silent_rank_]});
  }
  return effects;
}

NodeEffects NodeAgentMachine::stand_by(const std::vector<int>& slots, std::chrono::nanoseconds now) {
  NodeEffects effects;
  const bool is_calm = state_ == State::watching && alive_ == world() && !is_rebuilding_ && !has_asked_;
  if (!is_calm || slots.empty() || world() == most_ranks()) return effects;
  if (!standing_since_) standing_since_ = now;
  const auto wanted = std::min(spares_.size(), static_cast<std::size_t>(most_ranks() - world()));
  if (slots.size() < wanted && now - *standing_since_ < config_.spare_window) return effects;
  has_asked_ = true;
  effects.push_back(AskToWait{generation_});
  return effects;
}

/// The spares may be gone again; then the same ranks go on.
void NodeAgentMachine::admit(std::chrono::nanoseconds now, NodeEffects& effects) {
  while (world() < most_ranks() && !spares_.empty()) {
    slots_.push_back(*spares_.begin());
    spares_.erase(spares_.begin());
    running_.push_back(true);
    ++alive_;
  }
  begin_generation(now);
  effects.push_back(AdmitSpares{generation_, slots()});
}

NodeEffects NodeAgentMachine::unnoticed_by(const std::vector<bool>& spares, std::chrono::nanoseconds now) {
  NodeEffects effects;
  if (state_ != State::watching || !is_rebuilding_ || now - launched_ < config_.spare_window) return effects;
  for (const int rank : slots_.indices()) {
    if (core::place_of(rank) < spares.size() && spares[core::place_of(rank)] && running_[rank])
      effects.push_back(SignalRank{rank, SIGKILL, true, false, slots_[rank]});
  }
  return effects;
}

NodeEffects NodeAgentMachine::formed() {
  NodeEffects effects;
  settle(effects);
  return effects;
}

/// The replacement of ranks has ended. Only now is there time for starting other spares.
void NodeAgentMachine::settle(NodeEffects& effects) {
  if (!is_rebuilding_) return;
  is_rebuilding_ = is_counted_ = is_paid_ = false;
  endings_.clear();
  seen_stopped_.clear();
  if (state_ != State::watching) return;
  while (!free_slots_.empty() && restarts_ < config_.max_restarts) {
    ++restarts_;
    start_spare(*free_slots_.begin(), effects);
  }
}

void NodeAgentMachine::start_spare(int slot, NodeEffects& effects) {
  free_slots_.erase(slot);
  spares_.insert(slot);
  effects.push_back(StartSpare{slot});
}

NodeEffects NodeAgentMachine::spare_exited(int slot, ExitStatus status, bool stood_by) {
  NodeEffects effects;
  if (spares_.erase(slot) == 0) return effects;
  if (!is_dismissed_ && state_ == State::watching) {
    // A program that cannot stand by ends by itself. One that is killed twice before it does is let be.
    const bool was_killed = status.signal == SIGKILL && killed_early_.insert(slot).second;
    if (stood_by) killed_early_.erase(slot);
    const bool may_stand_by = stood_by || was_killed;
    const bool again = may_stand_by && restarts_ < config_.max_restarts;
    if (!may_stand_by) barred_.insert(slot);
    effects.push_back(SpareLost{slot, status, may_stand_by, again});
    restarts_ += again ? 1 : 0;
    if (again) start_spare(slot, effects);
  }
  end_when_all_have(effects);
  return effects;
}

/// Spares have nothing to save.
void NodeAgentMachine::end_when_all_have(NodeEffects& effects) {
  if (alive_ > 0) return;
  if (spares_.empty()) return gang_ended(effects);
  if (is_dismissed_) return;
  is_dismissed_ = true;
  for (const int slot : spares_) effects.push_back(SignalRank{-1, SIGKILL, true, false, slot});
  effects.push_back(ArmDeadline{config_.kill_timeout});
}

}  // namespace troupe::actors
