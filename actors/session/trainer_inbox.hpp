#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/shell/trainer_patience.hpp"
#include "core/ids.hpp"
#include "core/list.hpp"
#include "core/result.hpp"
#include "gpu/order/host_line.hpp"
#include "messages/envelope.hpp"

namespace troupe::gpu {
class FlightRecorder;
}

namespace troupe::actors {

/// Where messages to the trainer arrive: they change a few facts, which the trainer's thread waits for.
class TrainerInbox {
 public:
  TrainerInbox(std::uint32_t buckets, TrainerPatience& patience);

  /// Waits are recorded there; before the first one.
  void record_to(std::shared_ptr<gpu::FlightRecorder> recorder) { recorder_ = std::move(recorder); }

  /// From any thread.
  void deliver(const messages::Envelope& envelope);

  /// Until the next expect(), waits cannot end before all ranks have made the call that `need` names. A wait
  /// that takes long is reported to `tell`, and so is its end.
  using Tell = std::function<void(const messages::TrainerCalls&)>;
  void expect(std::optional<messages::TrainerCalls> need, Tell tell = {});
  /// What the trainer waits for has not come in time: that fails the session. Returns its first failure.
  core::Error fail(core::Error error);
  /// Called by fail(), and so by every wait whose deadline passes but for wait_welcome(), wait_farewell() and
  /// wait_store_value(), whose callers decide: tells the other ranks, and returns the job's first failure.
  /// Without it nothing fails.
  using OnDeadline = std::function<core::Error(core::Error)>;
  void on_deadline(OnDeadline told) { on_deadline_ = std::move(told); }

  /// All waits end with the failure's Error once the rank is fenced, and with Errc::timeout after `deadline`.
  core::Result<void> wait_welcome(std::chrono::nanoseconds deadline);
  core::Result<void> wait_farewell(std::chrono::nanoseconds deadline);
  core::Result<messages::StepDecided> wait_decided(core::Step step, std::chrono::nanoseconds deadline);
  core::Result<void> wait_committed(core::Step step, std::chrono::nanoseconds deadline);
  core::Result<void> wait_published(core::BucketIndex bucket, core::Step step,
                                    std::chrono::nanoseconds deadline);
  /// Waits until the bucket has merged this lane or a later one.
  core::Result<void> wait_merged(core::BucketIndex bucket, core::Step step, core::Lane lane,
                                 std::chrono::nanoseconds deadline);
  /// Waits until this many saves of this session have ended.
  core::Result<void> wait_saves(std::uint64_t over, std::chrono::nanoseconds deadline);
  /// Ends of saves since the last call, in order.
  std::vector<messages::SaveOver> take_saves();
  /// Like wait_saves() and take_saves(), for local saves.
  core::Result<void> wait_local_saves(std::uint64_t over, std::chrono::nanoseconds deadline);
  std::vector<messages::LocalSaveOver> take_local_saves();
  /// Waits until a writer (checkpoint_writer or local_writer) has copied the trainer's own tensors for this
  /// save and all before it.
  core::Result<void> wait_staged(messages::Role writer, std::uint64_t save,
                                 std::chrono::nanoseconds deadline);
  /// Waits until the ReplicaKeeper has brought what was requested; the Error is its failure, or the wait's.
  core::Result<void> wait_retrieved(std::chrono::nanoseconds deadline);
  /// Waits until the parameters that all ranks have loaded are gathered.
  core::Result<void> wait_gathered(std::chrono::nanoseconds deadline);
  /// Waits until a round in which ranks share what they have read has ended.
  core::Result<void> wait_shared(std::chrono::nanoseconds deadline);
  /// Waits until entry `entry` of `step`'s program, or a later one, has brought the bucket's full parameters.
  core::Result<void> wait_unit(core::BucketIndex bucket, core::Step step, core::PlanEntryIndex entry,
                               std::chrono::nanoseconds deadline);
  /// Waits until operation `number` of one of the trainer's groups has ended.
  core::Result<void> wait_collective(std::size_t group, const std::string& name, std::uint64_t number,
                                     std::chrono::nanoseconds deadline);
  /// Waits until the Conductor has launched the entry at this place among all launches of the session.
  core::Result<void> wait_launched(std::int64_t place, std::chrono::nanoseconds deadline);
  core::Result<std::string> wait_store_value(std::uint64_t request, std::chrono::nanoseconds deadline);

  // From any thread; wait_collective() and wait_launched() wait for these.
  void collective_over(std::size_t group, std::uint64_t number);
  void launched(std::int64_t place);

  bool has_launched(std::int64_t place) const { return launched_.load(std::memory_order_acquire) >= place; }
  /// Without waiting: whether the bucket holds the parameters after `step`.
  bool is_published(core::BucketIndex bucket, core::Step step) const;
  std::optional<core::Error> failure() const;
  /// What the trainer's thread is waiting for at present; empty while it computes.
  std::string waiting_for() const;

 private:
  /// Saves of one writer that have copied the trainer's own tensors, or need them no longer. They are not
  /// always in order: one that is refused has ended while another still waits.
  struct StagedSaves {
    void add(std::uint64_t save);

    std::uint64_t through = 0;  ///< this one and all before it
    std::set<std::uint64_t> later;
  };

  /// Messages are delivered by who sends them: the trainer will know what they know.
  void learn();
  core::Result<void> wait(std::string what, const std::function<bool()>& ready,
                          std::chrono::nanoseconds deadline);
  /// Like wait(), but a deadline that passes fails the session.
  core::Result<void> wait_or_fail(std::string what, const std::function<bool()>& ready,
                                  std::chrono::nanoseconds deadline);
  bool wait_told(std::unique_lock<std::mutex>& lock, const std::function<bool()>& ready,
                 std::chrono::nanoseconds deadline);

  TrainerPatience& patience_;
  std::shared_ptr<gpu::FlightRecorder> recorder_;  // the world's, shared with the groups
  std::optional<messages::TrainerCalls> need_;     ///< of the trainer's thread, as tell_
  Tell tell_;
  OnDeadline on_deadline_;
  core::List<core::BucketIndex, std::atomic<std::int64_t>>
      published_;  ///< per bucket, the step whose update it holds
  std::atomic<std::int64_t> launched_{-1};
  std::atomic<bool> knows_order_{false};  ///< a checker of order gives known_ something
  mutable std::mutex mutex_;              // guards everything below
  gpu::HostLine known_;  ///< what the trainer knows to have happened when its next wait has ended
  bool welcome_ = false;
  bool farewell_ = false;
  std::optional<messages::StepDecided> decided_;
  core::Step committed_{-1};
  core::List<core::BucketIndex, std::pair<core::Step, core::Lane>> merged_;  ///< per bucket, the last one
  core::List<core::BucketIndex, std::pair<core::Step, core::PlanEntryIndex>>
      units_;                                       ///< per bucket, the entry that brought it
                                                    ///< last
  std::vector<messages::StoreValue> store_values_;  // at most one per open request
  std::vector<messages::SaveOver> saves_;
  std::uint64_t saves_over_ = 0;
  std::vector<messages::LocalSaveOver> local_saves_;
  std::uint64_t local_saves_over_ = 0;
  StagedSaves staged_;
  StagedSaves staged_locally_;
  std::optional<messages::RetrieveOver> retrieved_;
  std::optional<messages::StateGathered> gathered_;
  std::optional<messages::LoadedShared> shared_;
  std::vector<std::uint64_t> collectives_;  ///< by the trainer's groups, the last operation that has ended
  std::optional<core::Error> failure_;
  std::string waiting_for_;
  std::string note_;  ///< the last WaitNote
};

}  // namespace troupe::actors
