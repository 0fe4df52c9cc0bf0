#include "actors/roles/coordinator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <sstream>
#include <utility>

#include "core/enum_names.hpp"

namespace troupe::actors {

using messages::Role;

namespace {

/// A call that other ranks have not made for so long is worth a word.
constexpr auto kPatience = std::chrono::seconds(3);
/// For ranks to tell of deadlines that passed at about the same time.
constexpr auto kHearing = std::chrono::milliseconds(50);

std::string different_settings(const std::vector<std::string>& ours, const std::vector<std::string>& theirs,
                               core::Rank rank) {
  std::size_t line = 0;
  while (line < ours.size() && line < theirs.size() && ours[line] == theirs[line]) ++line;
  const auto text = [line](const std::vector<std::string>& lines) {
    return line < lines.size() ? lines[line] : std::string("nothing");
  };
  return fmt::format(
      "rank {} runs with other settings than rank 0: rank 0 has \"{}\", rank {} has \"{}\"; "
      "start all ranks alike",
      rank.value, text(ours), rank.value, text(theirs));
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace

CoordinatorMachine::CoordinatorMachine(CoordinatorConfig config)
    : config_(config), roll_call_(config.world) {}

void CoordinatorMachine::start(Outbox& outbox) {
  outbox.arm(kJoinTimer, config_.join_deadline);
}

void CoordinatorMachine::timer(TimerId id, Outbox& outbox) {
  if (id == kHearingTimer) return judge(outbox);
  if (id == kRollCallTimer) {
    const auto news = roll_call_.news();
    if (news.empty() || state_ != State::running) return;
    for (const auto& [rank, joined] : joined_)
      outbox.send({rank, Role::trainer, 0}, messages::WaitNote{news});
    return;
  }
  if (state_ != State::forming) return;
  if (failure_.failed) {
    refuse(messages::error_of(failure_), outbox);
    return;
  }
  auto seconds = std::chrono::duration<double>(config_.join_deadline).count();
  refuse(
      {core::Errc::timeout,
       fmt::format("the job did not form within {} s: rank 0 still waits for {}; start what is missing, or "
                   "look into its log",
                   seconds, waiting_for())},
      outbox);
}

std::unique_ptr<Machine> CoordinatorMachine::successor(const messages::Failure& why,
                                                       const messages::Envelope* heard,
                                                       Outbox& outbox) const {
  auto next = std::make_unique<CoordinatorMachine>(config_);
  next->state_ = state_;
  next->failure_ = failure_;
  next->joined_ = joined_;
  next->left_ = left_;
  if (const auto* join = heard != nullptr ? std::get_if<messages::Join>(&heard->body) : nullptr)
    next->joined_.try_emplace(join->rank, *join);
  if (state_ == State::closed) {
    next->tell_all(messages::Farewell{static_cast<std::uint32_t>(joined_.size())}, outbox);
  } else if (state_ == State::fenced) {
    next->tell_all(messages::Fence{core::Rank{0}, failure_.failed ? failure_ : why}, outbox);
  } else if (state_ == State::forming) {
    // Ranks that come later must still find this rank: all are told together.
    next->failure_ = why;
    next->start(outbox);
    if (next->joined_.size() == static_cast<std::size_t>(config_.world.value)) next->compare(outbox);
  } else {
    next->fence(core::Rank{0}, why, outbox);
  }
  return next;
}

void CoordinatorMachine::receive(const messages::Envelope& envelope, Outbox& outbox) {
  dispatch(envelope.body, Overloaded{[&](const messages::Join& m) { on(m, outbox); },
                                     [&](const messages::PlanHashes& m) { on(m, outbox); },
                                     [&](const messages::PlanLines& m) { on(m, outbox); },
                                     [&](const messages::Leave& m) { on(m, outbox); },
                                     [&](const messages::RankFailed& m) { on(m, outbox); },
                                     [&](const messages::StepAccount& m) { on(m, outbox); },
                                     [&](const messages::TrainerCalls& m) { on(m, outbox); },
                                     [&](const messages::StepsTimed& m) { on(m, outbox); },
                                     [&](const messages::PeerLost& m) {
                                       if (!left_.contains(m.rank)) fence(m.rank, m.failure, outbox);
                                     },
                                     [&](const messages::StoreSet& m) { on(m, outbox); },
                                     [&](const messages::StoreGet& m) { on(m, envelope.from, outbox); }});
}

void CoordinatorMachine::on(const messages::Join& join, Outbox& outbox) {
  if (state_ != State::forming) {
    messages::Failure late{true, core::Errc::stale_epoch,
                           fmt::format("rank {} asks to join, but this epoch is {}; it can come in with the "
                                       "next one",
                                       join.rank.value, state())};
    outbox.send({join.rank, Role::rank_supervisor, 0},
                messages::Refused{failure_.failed ? failure_ : std::move(late)});
    return;
  }
  joined_[join.rank] = join;
  if (join.world != config_.world) {
    refuse(
        {core::Errc::mismatch,
         fmt::format("rank {} was started for {} ranks, rank 0 for {}: start all ranks with one WORLD_SIZE",
                     join.rank.value, join.world.value, config_.world.value)},
        outbox);
    return;
  }
  if (joined_.size() == static_cast<std::size_t>(config_.world.value)) compare(outbox);
}

void CoordinatorMachine::on(const messages::RankFailed& failed, Outbox& outbox) {
  if (state_ == State::running && failed.failure.code == core::Errc::timeout) {
    late_.push_back(failed);
    if (late_.size() == 1) outbox.arm(kHearingTimer, kHearing);
    if (late_.size() == joined_.size()) judge(outbox);
    return;
  }
  if (state_ != State::forming || joined_.contains(failed.rank)) {
    fence(failed.rank, failed.failure, outbox);
    return;
  }
  // It joins only to report this. Ranks that come later must still find this rank: all are told together.
  if (!failure_.failed) failure_ = failed.failure;
}

void CoordinatorMachine::compare(Outbox& outbox) {
  if (failure_.failed) {
    refuse(messages::error_of(failure_), outbox);
    return;
  }
  const auto& first = joined_.begin()->second;
  std::map<std::int32_t, const messages::Join*> firsts;  // of each stage
  for (const auto& [rank, join] : joined_) {
    if (join.configuration != first.configuration) {
      refuse({core::Errc::mismatch,
              different_settings(lines_of(first.configuration), lines_of(join.configuration), rank)},
             outbox);
      return;
    }
    const auto& alike = *firsts.try_emplace(join.stage, &join).first->second;
    if (join.plan_hash == alike.plan_hash) continue;
    search_.emplace(alike.rank, rank);
    ask_for_plans(outbox);
    return;
  }
  state_ = State::running;
  messages::Welcome welcome;
  std::map<core::Rank, std::int32_t> stages;
  for (const auto& [rank, join] : joined_) {
    welcome.members.push_back(rank);
    stages[rank] = join.stage;
  }
  stragglers_ = Stragglers(std::move(stages));
  tell_all(welcome, outbox);
}

void CoordinatorMachine::ask_for_plans(Outbox& outbox) const {
  for (auto rank : search_->ranks()) outbox.send({rank, Role::rank_supervisor, 0}, search_->wanted());
}

void CoordinatorMachine::on(const messages::PlanHashes& hashes, Outbox& outbox) {
  if (state_ == State::forming && search_ && search_->add(hashes)) ask_for_plans(outbox);
}

void CoordinatorMachine::on(const messages::PlanLines& lines, Outbox& outbox) {
  if (state_ != State::forming || !search_) return;
  const auto difference = search_->add(lines);
  if (!difference) return;
  refuse({core::Errc::mismatch,
          fmt::format("rank {} plans another step than rank {}; the first difference is {}",
                      search_->ranks()[1].value, search_->ranks()[0].value, *difference)},
         outbox);
}

void CoordinatorMachine::refuse(core::Error error, Outbox& outbox) {
  state_ = State::fenced;
  failure_ = messages::failure_of(error);
  tell_all(messages::Refused{failure_}, outbox);
}

void CoordinatorMachine::judge(Outbox& outbox) {
  if (state_ != State::running || late_.empty()) return;
  // One whose operation waits for itself alone waits for nobody.
  const auto waits = [&](core::Rank rank) {
    return std::ranges::any_of(late_, [&](const auto& failed) {
      return failed.rank == rank && failed.failure.missing != std::vector{rank};
    });
  };
  // Best names ranks that do not wait, and no other; then some; then only ranks that wait; then nobody.
  const auto goodness = [&](const messages::RankFailed& failed) {
    const auto& named = failed.failure.missing;
    const auto waiting = std::ranges::count_if(named, waits);
    return std::pair(named.empty() ? 0 : waiting == std::ssize(named) ? 1 : 2, -waiting);
  };
  const auto told = std::ranges::max_element(late_, {}, goodness);
  fence(told->rank, told->failure, outbox);
}

void CoordinatorMachine::fence(core::Rank culprit, messages::Failure failure, Outbox& outbox) {
  if (state_ == State::fenced || state_ == State::closed) return;
  state_ = State::fenced;
  failure_ = std::move(failure);
  tell_all(messages::Fence{culprit, failure_}, outbox);
}

void CoordinatorMachine::on(const messages::StepAccount& account, Outbox& outbox) {
  if (state_ != State::running) return;
  accounts_[account.rank] = account;
  if (accounts_.size() < joined_.size()) return;
  const auto accounts = std::exchange(accounts_, {});
  if (const auto difference = difference_in_calls(accounts))
    return fence(account.rank, {true, core::Errc::mismatch, *difference}, outbox);
  tell_all(messages::StepReason{account.step, reason_of(accounts)}, outbox);
}

void CoordinatorMachine::on(const messages::TrainerCalls& waits, Outbox& outbox) {
  if (state_ != State::running) return;
  roll_call_.add(waits);
  if (!waits.waits) return;
  if (waits.needs != messages::Call::begin_step) outbox.arm(kRollCallTimer, kPatience);
  if (const auto deadlock = roll_call_.deadlock())
    fence(waits.rank, {true, core::Errc::mismatch, *deadlock}, outbox);
}

void CoordinatorMachine::on(const messages::StepsTimed& timed, Outbox& outbox) {
  if (state_ != State::running) return;
  for (auto& text : stragglers_.add(timed))
    outbox.send({core::Rank{0}, Role::trainer, 0}, messages::WaitNote{std::move(text)});
}

void CoordinatorMachine::on(const messages::Leave& leave, Outbox& outbox) {
  left_.insert(leave.rank);
  if (state_ != State::running || left_.size() < joined_.size()) return;
  state_ = State::closed;
  tell_all(messages::Farewell{static_cast<std::uint32_t>(joined_.size())}, outbox);
}

void CoordinatorMachine::on(const messages::StoreSet& set, Outbox& outbox) {
  store_[set.key] = set.value;
  auto answered = [&](const auto& waiting) {
    if (waiting.second.key != set.key) return false;
    outbox.send(waiting.first, messages::StoreValue{waiting.second.request, set.value});
    return true;
  };
  waiting_gets_.erase(std::remove_if(waiting_gets_.begin(), waiting_gets_.end(), answered),
                      waiting_gets_.end());
}

void CoordinatorMachine::on(const messages::StoreGet& get, const messages::Address& from, Outbox& outbox) {
  auto found = store_.find(get.key);
  if (found == store_.end()) {
    waiting_gets_.emplace_back(from, get);
  } else {
    outbox.send(from, messages::StoreValue{get.request, found->second});
  }
}

void CoordinatorMachine::tell_all(const messages::Message& message, Outbox& outbox) const {
  // Rank 0, whose process this is, comes last: when it hears of an end, it may end itself.
  for (auto member = joined_.rbegin(); member != joined_.rend(); ++member) {
    outbox.send({member->first, Role::rank_supervisor, 0}, message);
  }
}

std::string_view CoordinatorMachine::state() const {
  static constexpr auto kNames = core::enum_names<State>("forming", "running", "fenced", "closed");
  return kNames[state_];
}

std::string CoordinatorMachine::waiting_for() const {
  std::string missing;
  bool forming = state_ == State::forming;
  if (!forming && (state_ != State::running || left_.empty())) return {};
  for (std::int32_t rank = 0; rank < config_.world.value; ++rank) {
    bool here = forming ? joined_.contains({rank}) : left_.contains({rank});
    if (!here) missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
  }
  return fmt::format("rank {} to {}", missing, forming ? "join" : "finish");
}

}  // namespace troupe::actors
