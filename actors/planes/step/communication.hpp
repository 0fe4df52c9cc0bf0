#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "actors/planes/step/busy_time.hpp"
#include "actors/planes/step/step_context.hpp"

namespace troupe::actors {

/// The process groups a rank takes part in. Communicators of the same ranks on one stream may share a group.
struct DataPlaneGroups {
  std::vector<std::unique_ptr<gpu::Group>> owned;
  std::map<core::Communicator, gpu::Group*> of;
  std::vector<std::unique_ptr<gpu::Group>> trainers;  ///< of the trainer's own collectives
};

/// What a rank gives to each rank of the job and takes from it, in rank order; counts are bytes.
struct LoadedBytes {
  gpu::ConstBufferView input;
  gpu::BufferView output;
  std::vector<std::size_t> input_counts;
  std::vector<std::size_t> output_counts;
  std::shared_ptr<const void> owner;  ///< of the memory; shared with the code that packs and unpacks it

  gpu::Operation operation(std::chrono::nanoseconds deadline) const;
};

/// Operations that were posted together.
struct Flight {
  std::vector<std::shared_ptr<gpu::OperationStatus>> operations;
  std::shared_ptr<std::atomic<std::int64_t>> began_ns;  ///< null: nothing was posted
  std::optional<core::Error> refused;                   ///< an operation could not be posted

  /// The first one, once the stream has passed them all.
  messages::Failure failure() const;
};

/// The collectives of a rank, on its stream "communication", in groups that may be aborted before they are
/// there.
class Communication {
 public:
  /// `in` must outlive it.
  explicit Communication(const StepContext& in) : in_(in) {}

  /// Errc::internal unless each entry of the rank's program has its group, with as many members as its counts
  /// are for. The groups are told what they carry, which may wait for other ranks.
  core::Result<void> set_groups(DataPlaneGroups groups);
  /// The groups are gone.
  void let_go();
  /// Memory of this rank is registered with a group.
  bool is_registered() const { return is_registered_; }
  /// Every running and later collective ends in this error. From any thread.
  void abort(const core::Error& reason);

  /// What cannot be posted is Flight::refused.
  void post(Flight& flight, gpu::Operation operation, core::Communicator communicator);
  /// Calls `over` with the flight, the first failure and the time when the stream has passed it all.
  using Over = std::function<void(const Flight&, const messages::Failure&, std::chrono::nanoseconds)>;
  void when_over(Flight flight, Over over);
  /// How long any operation was running, up to `now`.
  std::chrono::nanoseconds busy(std::chrono::nanoseconds now) const { return busy_.total(now); }

 private:
  void abort_groups();

  const StepContext& in_;
  BusyTime busy_;
  bool is_registered_ = false;
  DataPlaneGroups groups_;              ///< not changed any more when they are used
  std::mutex mutex_;                    // guards aborted_, and groups_ while they are taken or aborted
  std::optional<core::Error> aborted_;  ///< the first reason
};

}  // namespace troupe::actors
