#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "actors/roles/machine.hpp"
#include "core/ids.hpp"

namespace troupe::actors {

struct ParameterShardConfig {
  core::Rank rank{};
  core::BucketIndex bucket{};
  /// The program's entries that bring the updated parameters to where they are kept, in order; empty when
  /// they are updated in place.
  std::vector<core::PlanEntryIndex> gather_entries;
  bool trainable = true;  ///< if false, nothing steps it
};

/// This rank's shard of a bucket's parameters and optimizer state: gathered -> updating -> gathering ->
/// gathered.
///
/// PS-1: between the optimizer's step and the end of the gather the bucket is not published: whoever asks for
/// it waits. PS-2: each decided step is applied once, in order, after the bucket of the previous step is
/// published. CK-6: a save that began after step s sees the state after s: a later step is applied only when
/// the save has what it needs. PS-4: full parameters that are wanted for a step are gathered only when the
/// update of the previous step is enqueued.
class ParameterShardMachine final : public Machine {
 public:
  explicit ParameterShardMachine(ParameterShardConfig config);

  void receive(const messages::Envelope& envelope, Outbox& outbox) override;
  std::string_view state() const override;
  std::string waiting_for() const override;

 private:
  enum class State : std::uint8_t { gathered, updating, gathering };

  void on(const messages::StepDecided& decided, Outbox& outbox);
  void on(const messages::SaveBegan& begun, messages::Role writer, Outbox& outbox);
  void on(const messages::BucketStaged& staged, messages::Role writer, Outbox& outbox);
  void apply_next(Outbox& outbox);
  void apply(const messages::StepDecided& decided, Outbox& outbox);
  void say_held(Outbox& outbox);
  void on(const messages::ShardStepped& stepped, Outbox& outbox);
  void on(const messages::CollectiveDone& done, Outbox& outbox);
  void on(const messages::UnitWanted& wanted, Outbox& outbox);
  void gather_wanted(Outbox& outbox);
  void publish(Outbox& outbox);
  messages::Address peer(messages::Role role) const { return {config_.rank, role, 0}; }

  ParameterShardConfig config_;
  State state_ = State::gathered;
  core::Step step_{-1};
  struct Hold {
    messages::Role writer{};  ///< the role that needs the bucket; each counts its own saves
    std::uint64_t sequence = 0;
    core::Step step{};  ///< the save wants the state after this step
    bool said = false;
  };
  std::vector<Hold> holds_;  ///< by saves that have not staged the bucket yet
  /// Not applied yet. At most one, as long as the next step's reduction waits for this one's update.
  std::vector<messages::StepDecided> decided_;
  bool gathers_ = false;                      ///< this step's update is followed by a gather
  bool stepped_ = false;                      ///< the optimizer has finished
  std::size_t collected_ = 0;                 ///< entries of the gather that are complete
  std::vector<messages::UnitWanted> wanted_;  ///< too early: for the step after the next update
};

}  // namespace troupe::actors
