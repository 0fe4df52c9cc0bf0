#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpu/collective/flight_recorder.hpp"
#include "gpu/collective/nccl/nccl_group.hpp"
#include "gpu/collective/turnstile.hpp"

namespace troupe::gpu {

/// A group's state, which exists as long as anything may still look at it.
class NcclGroup::State final : public NcclWatched, public std::enable_shared_from_this<NcclGroup::State> {
 public:
  State(NcclDevice& device, GroupOptions options, int index, std::unique_ptr<NcclCommunicator> communicator,
        Buffer words);

  int index() const { return index_; }
  const GroupOptions& options() const { return options_; }
  NcclDevice& device() const { return device_; }
  BufferView words() const { return words_.view(); }
  /// Null in a group of one member.
  NcclCommunicator* communicator() const { return communicator_.get(); }

  /// Posts prepared operations as a single launch.
  core::Result<std::vector<std::shared_ptr<OperationStatus>>> post(std::vector<Posting> postings);

  /// Finishes completed operations; fails the group if something is late or NCCL reports an error.
  bool look() override;
  /// The first call counts: running and later operations end in `error`.
  void fail(core::Error error);
  /// The member no longer needs the group.
  void leave();
  /// For a group that failed; false if NCCL is stuck.
  bool wait_for_disposal();

  NcclOrder order() const;
  void forget_order();
  /// What is posted from now on is recorded (GroupOptions::recorder).
  void record();

 private:
  struct Running {
    std::string what;  ///< "all_reduce 17"
    std::chrono::nanoseconds deadline{};
    Event started;  ///< the stream has reached the operation
    Event done;
    std::optional<std::chrono::steady_clock::time_point> began;  ///< when `started` was first seen complete
    std::shared_ptr<OperationStatus> status;
    FlightEntry* entry = nullptr;

    void finish(core::Result<void> result) {
      FlightTrack::ended(entry, result);
      status->finish(std::move(result));
    }
  };

  core::Result<void> launch(std::vector<Posting>& postings, const std::vector<NcclPlan>& plans,
                            std::vector<Running>& running);
  /// Enqueues `calls` between the events that record when the operations began and ended.
  core::Result<void> enqueue(std::vector<Posting>& postings, const std::vector<NcclPlan>& plans,
                             std::vector<Running>& running, const std::function<core::Result<void>()>& calls);
  core::Result<Running> begin(const Operation& operation);
  void keep(const std::vector<Posting>& postings, std::vector<Running> running);
  void count(const Operation& operation);
  void finish_completed();
  std::optional<core::Error> find_late();
  void give_back(Running& running);
  std::optional<core::Error> failure() const;

  NcclDevice& device_;
  const GroupOptions options_;
  const int index_;
  const Buffer words_;
  const std::unique_ptr<NcclCommunicator> communicator_;
  std::mutex ending_;  // guards disposal_; taken before mutex_
  // Shared with the NcclDisposal and its thread.
  std::shared_ptr<NcclDisposal::Task> disposal_;
  mutable std::mutex mutex_;  // guards everything below
  std::list<Running> running_;
  std::optional<core::Error> failure_;
  std::uint64_t posted_ = 0;
  NcclOrder order_;
  std::optional<Turnstiles> numbers_;  ///< of the series, for the record
  FlightTrack track_;                  ///< from record() on
};

}  // namespace troupe::gpu
