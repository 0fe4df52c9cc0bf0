#pragma once

#include <list>
#include <memory>
#include <mutex>

#include "gpu/collective/nccl/errors.hpp"
#include "gpu/collective/nccl/library.hpp"
#include "gpu/collective/nccl/memory.hpp"
#include "gpu/collective/nccl/options.hpp"

namespace troupe::gpu {

/// A communicator, and the objects that belong to it.
struct NcclHandle {
  NcclComm comm = nullptr;
  // All shared by the communicator's user and by the disposing thread, which may be left behind.
  std::shared_ptr<const NcclCaller> caller;
  /// Held by any thread that calls NCCL with this communicator.
  std::shared_ptr<std::timed_mutex> calls;
  /// Accessed by the holder of `calls`.
  std::shared_ptr<NcclRegistrations> registrations;
};

/// Disposes of communicators. Aborting one blocks for as long as its teardown takes, so each has a thread of
/// its own, and one that does not return is reported and left behind. Thread-safe.
class NcclDisposal {
 public:
  class Task;

  NcclDisposal(std::shared_ptr<const NcclLibrary> library, NcclDevicePort port, NcclOptions options);
  /// Waits for the tasks that were begun, as long as the budgets allow.
  ~NcclDisposal();
  NcclDisposal(const NcclDisposal&) = delete;
  NcclDisposal& operator=(const NcclDisposal&) = delete;

  /// Begins to abort the communicator, which must not be used from now on. Returns immediately.
  std::shared_ptr<Task> abort(NcclHandle handle);
  /// Begins to leave: operations end first, and peers may leave later. Aborts if that takes too long.
  std::shared_ptr<Task> leave(NcclHandle handle);

  /// Blocks until the task is done; false if its budget passed first.
  bool wait(const std::shared_ptr<Task>& task);
  /// Blocks until every task is done, or its budget passed; false if some are stuck.
  bool wait_for_all();
  /// Reports tasks that are stuck; returns whether any task runs. Called periodically.
  bool look();

 private:
  std::shared_ptr<Task> start(NcclHandle handle, bool in_peace);

  // Shared by all that call NCCL, also by threads that were left behind.
  const std::shared_ptr<const NcclLibrary> library_;
  const NcclDevicePort port_;
  const NcclOptions options_;
  std::mutex mutex_;  // guards tasks_
  // Each task is shared by this list, its thread and those waiting for it.
  std::list<std::shared_ptr<Task>> tasks_;
};

}  // namespace troupe::gpu
