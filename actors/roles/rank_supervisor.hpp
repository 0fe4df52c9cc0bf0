#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/roles/machine.hpp"
#include "core/ids.hpp"
#include "core/optimizer/large_gradients.hpp"

namespace troupe::actors {

struct RankSupervisorConfig {
  core::Rank rank{};
  core::WorldSize world{1};
  std::uint32_t buckets = 0;
  std::uint32_t frozen_buckets = 0;        ///< of these buckets; they have no gradients
  std::vector<core::BucketIndex> forward;  ///< in forward order; empty: from the last one to the first
  core::PlanEntryIndex verdict_entry{};    ///< the plan's entry for the verdict's reduction
  std::uint64_t plan_hash = 0;
  /// Shared by ranks of a process that say the same.
  std::shared_ptr<const std::vector<std::string>> plan_lines =
      std::make_shared<const std::vector<std::string>>();
  std::int32_t stage = 0;            ///< ranks that keep the same part of the model, and plan alike
  std::string configuration;         ///< one line per setting that all ranks must share
  double clip_norm = 0;              ///< 0: gradients are not clipped
  double large_gradient_factor = 0;  ///< TrainingOptions::large_gradient_factor
  std::chrono::nanoseconds join_deadline = std::chrono::seconds(60);
  messages::Failure failure{};  ///< the rank joins only to tell all others why it cannot take part
};

/// What every rank decides of a step (RS-1): from the common verdict, what all ranks have given alike, and
/// the reason that the Coordinator has told where a rank refuses or ranks differ.
struct StepFacts {
  core::Step step{};
  double learning_rate = 0;
  double loss_scale = 1;
  double clip_norm = 0;  ///< as in the config
  messages::Verdict verdict;
};
messages::StepDecided decision_on(const StepFacts& facts, std::string reason);

/// The lifecycle of one rank: joining -> running -> leaving -> left, and from every state -> fenced.
///
/// RS-1: every rank decides a step from the same reduced facts by the same formula, so all decide the same.
/// Why a step is refused, or in what ranks differ, the Coordinator tells all of them before they decide.
/// RS-2: a step is decided only after every bucket is reduced and the verdict has arrived. RS-3: a fenced
/// rank decides nothing, and its trainer is told why: by the Coordinator's message, or after a second without
/// one.
class RankSupervisorMachine final : public Machine {
 public:
  explicit RankSupervisorMachine(RankSupervisorConfig config);

  void start(Outbox& outbox) override;
  void receive(const messages::Envelope& envelope, Outbox& outbox) override;
  void timer(TimerId id, Outbox& outbox) override;
  /// One that fences the rank.
  std::unique_ptr<Machine> successor(const messages::Failure& why, const messages::Envelope* heard,
                                     Outbox& outbox) const override;
  std::string_view state() const override;
  std::string waiting_for() const override;

 private:
  enum class State : std::uint8_t { joining, running, fenced, leaving, left };
  enum class Phase : std::uint8_t { idle, backward, verdict, accounts };
  static constexpr TimerId kJoinTimer = 0;
  static constexpr TimerId kFenceTimer = 1;

  void on_membership(const messages::Message& message, Outbox& outbox);
  void on_step(const messages::Message& message, Outbox& outbox);
  void begin(const messages::StepBegan& begun);
  void prepare_verdict_when_ready(Outbox& outbox);
  void decide_when_ready(Outbox& outbox);
  void decide(std::string reason, Outbox& outbox);
  void fence(messages::Failure reason, bool tell_coordinator, Outbox& outbox);
  void tell_trainer(messages::Failure reason, Outbox& outbox);
  std::uint32_t trained_buckets() const { return config_.buckets - config_.frozen_buckets; }
  messages::Address peer(messages::Role role, std::uint32_t index = 0) const {
    return {config_.rank, role, index};
  }
  static messages::Address coordinator() { return {core::Rank{0}, messages::Role::coordinator, 0}; }

  RankSupervisorConfig config_;
  core::LargeGradients large_gradients_;
  State state_ = State::joining;
  Phase phase_ = Phase::idle;
  core::Step step_{-1};
  double learning_rate_ = 0;
  double loss_scale_ = 1;
  std::uint32_t buckets_ready_ = 0;
  std::uint32_t buckets_reduced_ = 0;
  core::Step updating_{-1};  ///< the decided step whose shards are being updated, during the next backward
  bool commits_ = false;     ///< the decision on it
  std::uint32_t shards_updated_ = 0;
  bool backward_finished_ = false;
  bool verdict_arrived_ = false;
  std::string refusal_;             ///< of this rank
  std::vector<std::string> alike_;  ///< what this rank has given, and how often it has called what
  messages::CallCounts calls_;
  std::vector<messages::LaneLoss> losses_;
  std::uint32_t wishes_ = 0;
  messages::Verdict verdict_;
  /// Why this rank is fenced, until the trainer is told. Telling it ends the process's part in the job, and
  /// in rank 0 the Coordinator's, so the Coordinator, which names the first culprit, speaks first.
  std::optional<messages::Failure> untold_;
};

}  // namespace troupe::actors
