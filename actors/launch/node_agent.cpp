#include "actors/launch/node_agent.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "core/enum_names.hpp"
#include "core/errors.hpp"

namespace troupe::actors {

std::string_view name_of(Ending::Kind kind) noexcept {
  static constexpr auto kNames = core::enum_names<Ending::Kind>("completed", "first", "secondary", "late",
                                                                "stopped", "abandoned", "lost with its node");
  return kNames[kind];
}

namespace {

/// No process ends itself like this: such a death does not follow from a peer's.
bool killed_from_outside(const Ending& ending) {
  const ExitStatus status = ending.status;
  return ending.kind == Ending::Kind::lost || status.signal == SIGKILL || status.signal == SIGSEGV ||
         status.signal == SIGBUS || status.signal == SIGILL || status.signal == SIGFPE;
}

/// Somebody has ended it, or its node is gone. A hung one, which we have killed, has itself to blame.
bool is_from_outside(const Ending& ending) {
  const int signal = ending.status.signal;
  const bool is_killed = signal == SIGKILL || signal == SIGTERM || signal == SIGINT || signal == SIGHUP;
  return ending.kind == Ending::Kind::lost || (is_killed && !ending.is_silent);
}

bool did_what_was_asked(ExitStatus status, int signal) {
  return status.signal == signal || status.code == 128 + signal;
}

}  // namespace

NodeAgentMachine::NodeAgentMachine(NodeAgentConfig config) : config_(std::move(config)) {
  CHECK(config_.ranks > 0, "a gang has at least one rank");
  auto shares = config_.shares;
  if (shares.empty()) {
    for (int node = 0; node < config_.nodes; ++node) {
      const int ranks = config_.ranks / config_.nodes + (node < config_.ranks % config_.nodes ? 1 : 0);
      shares.push_back({ranks, node == 0 ? config_.spares : 0});
    }
  }
  int slot = 0;
  for (const NodeShare& share : shares) {
    nodes_.push_back({share, slot});
    slot += nodes_.back().slots();
  }
  if (config_.fewest_nodes == 0) config_.fewest_nodes = config_.nodes;
  generation_ = config_.first_generation;
  restarts_ = config_.restarts_before;
}

NodeEffects NodeAgentMachine::start(std::chrono::nanoseconds now) {
  CHECK(state_ == State::starting, "the gang is started once");
  NodeEffects effects;
  launch(now, effects);
  return effects;
}

void NodeAgentMachine::launch(std::chrono::nanoseconds now, NodeEffects& effects) {
  CHECK(alive_ == 0, "NA-1: the gang starts only when no process of the generation before it runs");
  state_ = State::watching;
  rung_ = Rung::none;
  launched_ = now;
  endings_.clear();
  is_rebuilding_ = is_counted_ = is_paid_ = is_dismissed_ = has_asked_ = false;
  silent_rank_.reset();
  silent_since_.reset();
  seen_stopped_.clear();
  standing_since_.reset();
  free_slots_.clear();
  newcomers_.clear();
  slots_.clear();
  for (const Node& node : nodes_) {
    for (int i = 0; node.is_present && i < node.share.ranks; ++i) slots_.push_back(node.first_slot + i);
  }
  running_.assign(slots_.size(), true);
  alive_ = world();
  effects.push_back(StartGang{generation_, slots()});
  for (const Node& node : nodes_) {
    for (int i = node.share.ranks; node.is_present && i < node.slots(); ++i) {
      if (!barred_.contains(node.first_slot + i)) start_spare(node.first_slot + i, effects);
    }
  }
}

NodeEffects NodeAgentMachine::exited(int rank, ExitStatus status, std::chrono::nanoseconds now,
                                     Standing others) {
  NodeEffects effects;
  if (state_ == State::finished || !is_running(rank)) return effects;
  if (others.is_formed) settle(effects);
  running_[rank] = false;
  --alive_;
  endings_.push_back({rank, generation_, classify(status, now), status, now, silent_rank_ == rank,
                      state_ == State::stopping, slots_[rank]});
  silent_since_.reset();

  const bool has_failed = state_ == State::watching && cause();
  if (has_failed && !mend({endings_.back()}, others, now, effects)) {
    // A rank that ended because another did must not hide that one's exit code, which may forbid a restart.
    if (alive_ == 0 || cause_is_known()) {
      stop(SIGTERM, effects);
    } else if (endings_.back().kind == Ending::Kind::first) {
      effects.push_back(ArmDeadline{config_.cause_window});
    }
  }
  end_when_all_have(effects);
  return effects;
}

bool NodeAgentMachine::cause_is_known() const {
  const auto found = cause();
  return found && endings_[*found].status.code != kExitFenced;
}

NodeEffects NodeAgentMachine::start_failed(const std::vector<int>& slots) {
  NodeEffects effects;
  if (state_ != State::watching && state_ != State::stopping) return effects;
  start_failed_ = true;
  for (const int slot : slots) {
    const auto rank = rank_of(slot);
    if (!rank || !is_running(*rank)) continue;
    running_[*rank] = false;
    --alive_;
  }
  if (state_ == State::watching) stop(SIGTERM, effects);
  end_when_all_have(effects);
  return effects;
}

Ending::Kind NodeAgentMachine::classify(ExitStatus status, std::chrono::nanoseconds now) const {
  if (status.success()) return Ending::Kind::completed;
  if (state_ == State::watching) return cause() ? Ending::Kind::secondary : Ending::Kind::first;
  if (did_what_was_asked(status, asked_with_)) return Ending::Kind::stopped;
  if (rung_ == Rung::killed && did_what_was_asked(status, SIGKILL)) return Ending::Kind::stopped;
  const std::optional<std::size_t> first = cause();
  const bool soon = first && now - endings_[*first].at <= config_.secondary_window;
  return soon ? Ending::Kind::secondary : Ending::Kind::late;
}

std::optional<std::size_t> NodeAgentMachine::cause() const {
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < endings_.size(); ++i) {
    const Ending& ending = endings_[i];
    if (ending.kind == Ending::Kind::first) found = i;
    const bool lost = ending.kind == Ending::Kind::lost;
    if (lost && !found) found = i;
    if (!found || (ending.kind != Ending::Kind::secondary && !lost)) continue;
    const Ending& before = endings_[*found];
    const bool stronger = !lost && killed_from_outside(ending) && !killed_from_outside(before);
    const bool fenced = before.status.code == kExitFenced && ending.status.code != kExitFenced;
    if (stronger || fenced) found = i;
  }
  if (found && endings_[*found].status.code == kExitFenced) return silent().value_or(*found);
  return found;
}

/// Where all others ended because of another rank: the one that did not end by itself, because it was stopped
/// or hung. One that goes on when it is told to end may find itself left, and end like the others. If there
/// are several, one that was seen stopped, or had to be killed; otherwise nobody can tell.
std::optional<std::size_t> NodeAgentMachine::silent() const {
  std::optional<std::size_t> killed;
  std::vector<std::size_t> asked;
  for (std::size_t i = 0; i < endings_.size(); ++i) {
    const Ending& ending = endings_[i];
    const bool abandoned = ending.kind == Ending::Kind::abandoned;
    const bool left = ending.was_asked && ending.status.code == kExitFenced;
    // One that had nothing left to do with the others comes through when it goes on.
    if (ending.was_asked && ending.status.success() && seen_stopped_.contains(ending.rank)) return i;
    if (ending.kind != Ending::Kind::stopped && !abandoned && !left) continue;
    if (seen_stopped_.contains(ending.rank)) return i;
    if (!killed && (abandoned || ending.status.signal == SIGKILL)) killed = i;
    asked.push_back(i);
  }
  if (killed) return killed;
  return asked.size() == 1 ? std::optional(asked.front()) : std::nullopt;
}

NodeEffects NodeAgentMachine::signalled(int signal) {
  NodeEffects effects;
  if (state_ == State::finished) return effects;
  if (config_.forwarded_signals.contains(signal)) {
    for (int rank = 0; rank < world(); ++rank) {
      if (is_running(rank)) effects.push_back(SignalRank{rank, signal, false, true, slots_[rank]});
    }
    return effects;
  }
  const bool again = stop_signal_ != 0;
  if (!again) stop_signal_ = signal;
  if (again && signal == SIGINT && alive_ > 0) {
    kill_all(effects);
  } else if (state_ == State::watching) {
    stop(signal == SIGINT ? SIGINT : SIGTERM, effects);
  } else if (state_ == State::waiting || state_ == State::starting) {
    effects.push_back(CancelDeadline{});
    gang_ended(effects);
  }
  return effects;
}

NodeEffects NodeAgentMachine::deadline(std::chrono::nanoseconds now) {
  NodeEffects effects;
  if (state_ == State::finished) return effects;
  if (state_ == State::waiting && waits_for_nodes_) {
    finish(1,
           fmt::format("node {} did not come back within {:.3g} s", fmt::join(absent_nodes(), ", "),
                       std::chrono::duration<double>(config_.node_patience).count()),
           effects);
  } else if (state_ == State::waiting) {
    begin_when_ready(now, effects);
  } else if (is_dismissed_ && alive_ == 0) {
    spares_.clear();
    end_when_all_have(effects);
  } else if (state_ == State::watching && cause()) {
    stop(SIGTERM, effects);
  } else if (state_ == State::stopping && rung_ == Rung::asked) {
    kill_all(effects);
  } else if (state_ == State::stopping) {
    for (int rank = 0; rank < world(); ++rank) {
      if (!is_running(rank)) continue;
      endings_.push_back({rank, generation_, Ending::Kind::abandoned, {}, now, false, false, slots_[rank]});
      running_[rank] = false;
    }
    alive_ = 0;
    end_when_all_have(effects);
  }
  return effects;
}

void NodeAgentMachine::seen_stopped(int rank) {
  seen_stopped_.insert(rank);
}

void NodeAgentMachine::committed(std::int64_t step) {
  step_ = step;
}

void NodeAgentMachine::stop(int signal, NodeEffects& effects) {
  state_ = State::stopping;
  rung_ = Rung::asked;
  asked_with_ = signal;
  if (alive_ == 0) return;
  signal_all(signal, true, effects);
  // A stopped process handles SIGTERM only after it continues.
  signal_all(SIGCONT, true, effects);
  effects.push_back(ArmDeadline{config_.term_timeout});
}

void NodeAgentMachine::kill_all(NodeEffects& effects) {
  rung_ = Rung::killed;
  signal_all(SIGKILL, true, effects);
  effects.push_back(ArmDeadline{config_.kill_timeout});
}

void NodeAgentMachine::signal_all(int signal, bool group, NodeEffects& effects) const {
  for (int rank = 0; rank < world(); ++rank) {
    if (is_running(rank)) effects.push_back(SignalRank{rank, signal, group, false, slots_[rank]});
  }
}

std::optional<int> NodeAgentMachine::code_that_forbids_restart() const {
  for (int code : {kExitTemporaryFailure, kExitNoCheckpoint}) {
    for (const Ending& ending : endings_) {
      if (ending.status.signal == 0 && ending.status.code == code) return code;
    }
  }
  return std::nullopt;
}

void NodeAgentMachine::count_failure() {
  const bool progressed = step_ > furthest_step_;
  quick_failures_ = progressed || lived_for_a_while() ? 0 : quick_failures_ + 1;
  if (progressed) failures_at_step_ = own_failures_at_step_ = 0;
  const auto why = cause();
  failures_at_step_ += 1;
  own_failures_at_step_ += why && is_from_outside(endings_[*why]) ? 0 : 1;
  furthest_step_ = std::max(furthest_step_, step_);
}

bool NodeAgentMachine::lived_for_a_while() const {
  const auto failed = [](const Ending& ending) {
    return ending.kind == Ending::Kind::first || ending.kind == Ending::Kind::lost;
  };
  const auto first = std::find_if(endings_.begin(), endings_.end(), failed);
  return first != endings_.end() && first->at - launched_ >= config_.first_backoff;
}

bool NodeAgentMachine::makes_no_progress() const {
  const int limit = config_.no_progress_limit;
  return furthest_step_ &&
         (own_failures_at_step_ >= limit || failures_at_step_ >= NodeAgentConfig::kOutsideFactor * limit);
}

void NodeAgentMachine::gang_ended(NodeEffects& effects) {
  if (state_ == State::stopping || is_dismissed_) effects.push_back(CancelDeadline{});
  const auto why = cause();
  const auto is_left = [](const Ending& ending) {
    return ending.was_asked && (ending.status.code == kExitFenced || ending.status.success());
  };
  if (why && is_left(endings_[*why])) endings_[*why].kind = Ending::Kind::stopped;
  effects.push_back(EndGeneration{generation_, endings_, why});
  const auto is_abandoned = [](const Ending& ending) { return ending.kind == Ending::Kind::abandoned; };
  const bool abandoned = std::any_of(endings_.begin(), endings_.end(), is_abandoned);
  const std::optional<int> code = code_that_forbids_restart();
  if (cause() && !is_counted_) count_failure();
  // Others than this node say when they have cleared away what was left.
  for (std::size_t node = 1; node < nodes_.size(); ++node) nodes_[node].is_clear = false;

  if (stop_signal_ != 0) {
    finish(code == kExitTemporaryFailure ? *code : 128 + stop_signal_,
           fmt::format("stopped by {}", signal_name(stop_signal_)), effects);
  } else if (state_ == State::watching) {
    finish(0, "completed", effects);
  } else if (code) {
    finish(*code, fmt::format("exit code {} asks for no restart", *code), effects);
  } else if (start_failed_) {
    finish(1, "a rank could not be started", effects);
  } else if (abandoned) {
    finish(1, "a process does not end even by SIGKILL; this node is not healthy", effects);
  } else if (restarts_ == config_.max_restarts && !is_paid_) {
    finish(1,
           config_.max_restarts == 0 ? "no restart was asked for (--max-restarts)"
                                     : fmt::format("all {} restarts are used up", restarts_),
           effects);
  } else if (makes_no_progress()) {
    finish(1,
           fmt::format("no progress: {} failures in a row after step {}", failures_at_step_, *furthest_step_),
           effects);
  } else {
    begin_again(effects);
  }
}

/// A rank that was replaced in vain has been counted as this restart.
void NodeAgentMachine::begin_again(NodeEffects& effects) {
  restarts_ += is_paid_ ? 0 : 1;
  ++generation_;
  // The last rank's end is the present time.
  if (quick_failures_ <= 1) return begin_when_ready(endings_.back().at, effects);
  const int doublings = std::min(quick_failures_ - 2, 16);
  state_ = State::waiting;
  waits_for_nodes_ = false;
  // Many doublings of a long first pause would overflow.
  const auto first_backoff = std::min(config_.first_backoff, config_.longest_backoff);
  effects.push_back(
      ArmDeadline{std::min(first_backoff * (std::int64_t{1} << doublings), config_.longest_backoff)});
}

void NodeAgentMachine::finish(int exit_code, std::string verdict, NodeEffects& effects) {
  state_ = State::finished;
  verdict_ = std::move(verdict);
  effects.push_back(Finish{exit_code});
}

std::string_view NodeAgentMachine::state() const {
  static constexpr auto kNames =
      core::enum_names<State>("starting", "watching", "stopping", "waiting", "finished");
  return kNames[state_];
}

}  // namespace troupe::actors
