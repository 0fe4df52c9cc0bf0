// How the NodeAgent mends a generation whose other ranks stay.
#include <algorithm>
#include <csignal>

#include "actors/launch/node_agent.hpp"

namespace troupe::actors {

std::optional<int> NodeAgentMachine::rank_of(int slot) const {
  for (std::size_t rank = 0; rank < slots_.size(); ++rank) {
    if (slots_[rank] == slot) return static_cast<int>(rank);
  }
  return std::nullopt;
}

/// The others may still form the generation that another loss has begun: they leave it for the next.
std::optional<Remedy> NodeAgentMachine::remedy(Standing others) const {
  const bool is_possible = config_.in_place && config_.nodes == 1 && alive_ == world() - 1 &&
                           is_last_cause() && others.all_stay && stop_signal_ == 0 &&
                           !code_that_forbids_restart();
  if (!is_possible) return std::nullopt;
  if (!spares_.empty()) return Remedy::spare;
  // What comes to be started later joins them.
  if (config_.fewest_ranks > 0 && world() > config_.fewest_ranks) return Remedy::fewer_ranks;
  if (restarts_ < config_.max_restarts && world() > 1) return Remedy::start_again;
  return std::nullopt;
}

/// Whether the rank that ended last did so for a reason of its own.
bool NodeAgentMachine::is_last_cause() const {
  const ExitStatus status = endings_.back().status;
  return !status.success() && status.code != kExitFenced;
}

void NodeAgentMachine::replace(Remedy remedy, std::chrono::nanoseconds now, NodeEffects& effects) {
  if (!is_counted_) count_failure();
  is_counted_ = true;
  if (makes_no_progress() || quick_failures_ > 1) return stop(SIGTERM, effects);
  const int rank = endings_.back().rank;
  const auto place = static_cast<std::size_t>(rank);
  if (remedy == Remedy::start_again) {
    ++restarts_;
    is_paid_ = true;
  } else {
    free_slots_.insert(slots_[place]);
  }
  if (remedy == Remedy::spare) {
    slots_[place] = *spares_.begin();
    spares_.erase(spares_.begin());
  }
  if (remedy == Remedy::fewer_ranks) {
    slots_.erase(slots_.begin() + rank);
    running_.erase(running_.begin() + rank);
  } else {
    running_[place] = true;
    ++alive_;
  }
  ++generation_;
  is_rebuilding_ = true;
  has_asked_ = false;
  silent_rank_.reset();
  launched_ = now;
  effects.push_back(ReplaceRank{endings_.back(), generation_, slots_, remedy});
}

NodeEffects NodeAgentMachine::waited_for(const std::vector<bool>& waiting, std::chrono::nanoseconds now) {
  NodeEffects effects;
  std::vector<int> others;
  for (int rank = 0; rank < world(); ++rank) {
    const auto place = static_cast<std::size_t>(rank);
    if (place >= waiting.size() || !waiting[place]) others.push_back(rank);
  }
  const bool is_lost = state_ == State::watching && alive_ == world() && others.size() == 1 && world() > 1;
  if (has_asked_ && state_ == State::watching && alive_ == world() && others.empty()) {
    admit(now, effects);
  } else if (!is_lost) {
    silent_since_.reset();
  } else if (!silent_since_) {
    silent_since_ = now;
  } else if (!silent_rank_ &&
             now - *silent_since_ >= (has_asked_ ? config_.wait_window : config_.cause_window)) {
    silent_rank_ = others.front();
    effects.push_back(
        SignalRank{*silent_rank_, SIGKILL, true, false, slots_[static_cast<std::size_t>(*silent_rank_)]});
  }
  return effects;
}

NodeEffects NodeAgentMachine::stand_by(const std::vector<int>& slots) {
  NodeEffects effects;
  const bool is_calm = state_ == State::watching && alive_ == world() && !is_rebuilding_ && !has_asked_;
  if (!is_calm || slots.empty() || world() == config_.ranks) return effects;
  has_asked_ = true;
  effects.push_back(AskToWait{generation_});
  return effects;
}

/// The spares may be gone again; then the same ranks go on.
void NodeAgentMachine::admit(std::chrono::nanoseconds now, NodeEffects& effects) {
  while (world() < config_.ranks && !spares_.empty()) {
    slots_.push_back(*spares_.begin());
    spares_.erase(spares_.begin());
    running_.push_back(true);
    ++alive_;
  }
  ++generation_;
  is_rebuilding_ = true;
  has_asked_ = false;
  silent_since_.reset();
  launched_ = now;
  effects.push_back(AdmitSpares{generation_, slots_});
}

NodeEffects NodeAgentMachine::unnoticed_by(const std::vector<bool>& spares, std::chrono::nanoseconds now) {
  NodeEffects effects;
  if (state_ != State::watching || !is_rebuilding_ || now - launched_ < config_.spare_window) return effects;
  for (std::size_t rank = 0; rank < std::min(spares.size(), slots_.size()); ++rank) {
    if (spares[rank] && running_[rank])
      effects.push_back(SignalRank{static_cast<int>(rank), SIGKILL, true, false, slots_[rank]});
  }
  return effects;
}

NodeEffects NodeAgentMachine::formed() {
  NodeEffects effects;
  settle(effects);
  return effects;
}

/// What the ranks were replaced for is over. Only now is there time for starting other spares.
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
    const bool again = stood_by && restarts_ < config_.max_restarts;
    if (!stood_by) barred_.insert(slot);
    effects.push_back(SpareLost{slot, status, stood_by, again});
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
