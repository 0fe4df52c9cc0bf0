#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/roles/machine.hpp"
#include "actors/roles/plan_search.hpp"
#include "actors/roles/roll_call.hpp"
#include "actors/roles/stragglers.hpp"
#include "core/ids.hpp"

namespace troupe::actors {

struct CoordinatorConfig {
  core::WorldSize world{1};
  /// Deadline for all ranks to join; after it the job is refused, and the missing ranks are named.
  std::chrono::nanoseconds join_deadline = std::chrono::seconds(60);
};

/// Membership of the job, in rank 0's process: forming -> running -> closed, and from every state -> fenced.
///
/// CD-1: no rank is welcomed before all ranks are here with the same plan and configuration. CD-2: after a
/// fence no rank is welcomed, and every member is told the first culprit and its reason, once.
///
/// Ranks that wait for one another pass their deadlines one after the other, whoever it is that all wait for.
/// So the first deadline is not believed before the others were heard, for a moment: a rank that waits
/// for another is not the one that all wait for.
class CoordinatorMachine final : public Machine {
 public:
  explicit CoordinatorMachine(CoordinatorConfig config);

  void start(Outbox& outbox) override;
  void receive(const messages::Envelope& envelope, Outbox& outbox) override;
  void timer(TimerId id, Outbox& outbox) override;
  /// One that ends the epoch: what members have agreed on in the store is not made up again.
  std::unique_ptr<Machine> successor(const messages::Failure& why, const messages::Envelope* heard,
                                     Outbox& outbox) const override;
  std::string_view state() const override;
  std::string waiting_for() const override;

 private:
  enum class State : std::uint8_t { forming, running, fenced, closed };
  static constexpr TimerId kJoinTimer = 0;
  static constexpr TimerId kRollCallTimer = 1;
  static constexpr TimerId kHearingTimer = 2;

  void on(const messages::Join& join, Outbox& outbox);
  void on(const messages::RankFailed& failed, Outbox& outbox);
  void on(const messages::StepAccount& account, Outbox& outbox);
  void on(const messages::TrainerCalls& calls, Outbox& outbox);
  void on(const messages::StepsTimed& timed, Outbox& outbox);
  void on(const messages::PlanHashes& hashes, Outbox& outbox);
  void on(const messages::PlanLines& lines, Outbox& outbox);
  void on(const messages::Leave& leave, Outbox& outbox);
  void on(const messages::StoreGet& get, const messages::Address& from, Outbox& outbox);
  void on(const messages::StoreSet& set, Outbox& outbox);
  void compare(Outbox& outbox);
  void ask_for_plans(Outbox& outbox) const;
  void refuse(core::Error error, Outbox& outbox);
  void judge(Outbox& outbox);
  void fence(core::Rank culprit, messages::Failure failure, Outbox& outbox);
  void tell_all(const messages::Message& message, Outbox& outbox) const;

  CoordinatorConfig config_;
  State state_ = State::forming;
  std::map<core::Rank, messages::Join> joined_;
  std::optional<PlanSearch> search_;  ///< set once a rank has another plan than rank 0
  std::set<core::Rank> left_;
  RollCall roll_call_;
  Stragglers stragglers_;
  std::map<core::Rank, messages::StepAccount> accounts_;  ///< of the step that is not committed
  std::vector<messages::RankFailed> late_;  ///< whose deadlines have passed, while others are heard
  messages::Failure failure_;               ///< why the epoch has ended, or will end once all have joined
  std::map<std::string, std::string> store_;
  std::vector<std::pair<messages::Address, messages::StoreGet>>
      waiting_gets_;  // at most one per rank and group
};

}  // namespace troupe::actors
