#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/roles/machine.hpp"
#include "core/checkpoint/save_plan.hpp"
#include "core/options/options.hpp"
#include "messages/checkpoint.hpp"

namespace troupe::actors {

struct CheckpointCoordinatorConfig {
  core::WorldSize world{1};
  /// For each phase of a save: announcing, writing, committing.
  std::chrono::nanoseconds deadline = std::chrono::minutes(30);
  core::WhenBusy when_busy = core::WhenBusy::queue;
  std::uint64_t save_seed = 0;  ///< distinguishes saves from those of other jobs in the same directory
};

/// Plans saves and commits them, in rank 0's process: idle -> gathering -> preparing -> writing -> committing
/// -> idle. It handles one save at a time; a save fails as a whole with the first failure of any rank.
///
/// CK-1: a save is committed only after every rank has said that its files are durable. CK-5: every rank is
/// told the outcome of every save it announced, and all are told the same outcome.
class CheckpointCoordinatorMachine final : public Machine {
 public:
  explicit CheckpointCoordinatorMachine(CheckpointCoordinatorConfig config);

  void receive(const messages::Envelope& envelope, Outbox& outbox) override;
  void timer(TimerId id, Outbox& outbox) override;
  std::string_view state() const override;
  std::string waiting_for() const override;

 private:
  enum class State : std::uint8_t { idle, gathering, preparing, writing, committing };
  static constexpr TimerId kDeadline = 0;
  using Structure = std::shared_ptr<const core::SaveStructure>;  // of the ranks that have it, and the plan

  struct Save {
    std::map<core::Rank, messages::SaveAnnounced> announced;
    std::optional<messages::SaveOver> over;  ///< known before all ranks have announced it
  };
  /// What has arrived of a structure, which is asked for part by part.
  struct Parts {
    core::Rank from{};
    std::string text;
    std::uint32_t next = 0;
    std::uint32_t parts = 0;
  };

  void on(const messages::SaveAnnounced& announced, Outbox& outbox);
  void on(const messages::StructurePart& part, Outbox& outbox);
  void on(const messages::SaveDirectoryMade& made, Outbox& outbox);
  void on(const messages::FilesDurable& durable, Outbox& outbox);
  void on(const messages::SaveCommitDone& done, Outbox& outbox);
  void begin_next(Outbox& outbox);
  void plan_when_ready(Outbox& outbox);
  core::Result<void> plan();
  void commit(Outbox& outbox);
  core::Result<std::string> manifest() const;
  std::string common_warning() const;
  void finish(messages::Failure failure, Outbox& outbox);
  /// The rank could not do its part.
  void finish_for(core::Rank rank, messages::Failure failure, Outbox& outbox);
  void tell(core::Rank rank, messages::Message message, Outbox& outbox) const;
  std::vector<core::Rank> missing() const;
  bool is_member(core::Rank rank) const { return rank.value >= 0 && rank.value < config_.world.value; }
  const Save& active() const { return saves_.at(sequence_); }

  CheckpointCoordinatorConfig config_;
  State state_ = State::idle;
  std::uint64_t sequence_ = 0;  ///< of the save in progress
  core::Step step_{};
  std::string directory_;
  std::map<std::uint64_t, Save> saves_;  ///< at most one per rank beyond the one being worked on, and refused
                                         ///< ones that a rank has not announced yet
  std::map<core::Rank, std::uint64_t> last_announced_;
  std::map<std::uint64_t, Structure> structures_;  ///< by hash; those of the last plan
  std::map<std::uint64_t, Parts> arriving_;
  std::vector<std::uint64_t> planned_hashes_;  ///< per rank, what plan_ was made for
  core::SavePlan plan_;
  std::map<core::Rank, core::WrittenShards> durable_;
};

}  // namespace troupe::actors
