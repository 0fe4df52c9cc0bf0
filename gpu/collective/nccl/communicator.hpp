#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/result.hpp"
#include "gpu/collective/nccl/calls.hpp"
#include "gpu/collective/nccl/disposal.hpp"

namespace troupe::gpu {

/// When and why to stop waiting for NCCL.
struct NcclPatience {
  std::chrono::steady_clock::time_point give_up;
  std::chrono::nanoseconds limit{};  ///< the length of the wait, for errors
  std::function<bool()> is_over = [] { return false; };
};

/// A call and its stream.
struct NcclLaunch {
  NcclCall call;
  NativeStream stream = nullptr;
};

/// One non-blocking communicator. NCCL allows one thread at a time for all communicators of a device: the
/// caller of launch() holds the device's mutex, and everything else avoids running during launch().
class NcclCommunicator {
 public:
  struct Place {
    int index = 0;
    int size = 0;
  };

  /// Joins the communicator of `id`, as all members do. After an error there is nothing to dispose of. The
  /// device must be the thread's current one, and `launches` the device's mutex, which is held only during
  /// calls. `disposal` must outlive the communicator.
  static core::Result<std::unique_ptr<NcclCommunicator>> join(
      std::shared_ptr<const NcclLibrary> library, NcclDisposal& disposal, NcclCaller caller, Place place,
      const NcclUniqueId& id, const NcclOptions& options, const NcclPatience& patience, std::mutex& launches);

  /// Disposes of the communicator as abort() does, unless that was already done.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  /// Enqueues the calls on their streams, as one group. When it returns, whatever is enqueued next on the
  /// streams runs after them. After an error the communicator is unusable: NCCL keeps the first one, also of
  /// a call that it refused, and answers every later call with it. The caller must hold the device's mutex.
  core::Result<void> launch(std::span<const NcclLaunch> launches, const NcclPatience& patience);

  /// Registers the range, unless it already is. No posted operation may use it meanwhile. After an Error the
  /// range is not registered; an error that broke the communicator shows on its next use. The device must be
  /// the thread's current one, and the caller must hold the device's mutex.
  core::Result<void> register_memory(std::shared_ptr<const NcclMemory> memory, const NcclPatience& patience);
  /// Ends all registrations, under the same conditions.
  void deregister_memory();

  /// An error that NCCL reported since; empty during a launch, which checks itself.
  std::optional<core::Error> async_error();

  /// Ends the communicator: later calls see it as gone. Null if that was already done.
  std::shared_ptr<NcclDisposal::Task> abort();
  std::shared_ptr<NcclDisposal::Task> leave();

  const NcclCaller& caller() const { return *caller_; }

 private:
  NcclCommunicator(std::shared_ptr<const NcclLibrary> library, NcclDisposal& disposal, NcclCaller caller)
      : library_(std::move(library)),
        disposal_(disposal),
        caller_(std::make_shared<const NcclCaller>(std::move(caller))) {}

  NcclStatus call(const NcclLaunch& launch, NcclComm comm) const;
  core::Error error(NcclStatus status, std::string_view what, NcclComm comm) const;
  core::Error gone(std::string_view what) const;
  NcclHandle take();

  // Shared by all that call NCCL.
  const std::shared_ptr<const NcclLibrary> library_;
  NcclDisposal& disposal_;
  // Shared with the thread that disposes of the communicator: NCCL may keep its name.
  const std::shared_ptr<const NcclCaller> caller_;
  // Held during calls; shared like caller_, since disposal waits for calls that began earlier.
  const std::shared_ptr<std::timed_mutex> calls_ = std::make_shared<std::timed_mutex>();
  const std::shared_ptr<NcclRegistrations> registrations_ = std::make_shared<NcclRegistrations>();
  std::atomic<NcclComm> comm_ = nullptr;  ///< null once disposal has begun
};

}  // namespace troupe::gpu
