#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/result.hpp"
#include "gpu/collective/nccl/abi.hpp"
#include "gpu/device.hpp"

namespace troupe::gpu {

/// Held by one thread; null where there is nothing to restore.
using NcclCurrentDevice = std::shared_ptr<void>;

/// What NCCL must know about the device whose tensors it moves.
struct NcclDevicePort {
  std::string name;  ///< "cuda:0", for errors
  /// The native stream of a stream of the device.
  std::function<NativeStream(StreamView)> native;
  /// Makes the device the calling thread's current one, which NCCL uses, for as long as what it returns
  /// exists; after that the thread has the one again that it had before.
  std::function<core::Result<NcclCurrentDevice>()> make_current = [] { return NcclCurrentDevice(); };
};

struct NcclOptions {
  /// Thread blocks that a group's kernels may take from computation; 0 leaves the choice to NCCL. All members
  /// must set the same value.
  int min_ctas = 0;
  int max_ctas = 0;

  /// Run each operation that is expected of a group once while it is created (ConnectsAhead), and a
  /// barrier: NCCL connects members when an operation first needs it, and post() would wait for that.
  bool warm_up = true;

  /// Whether allocate() returns memory that communicators can register, and Group::use_memory() registers it,
  /// if the library supports it; see docs/nccl.md. All members must set the same value.
  bool register_memory = false;
  /// Receives a line for the user, about a problem short of a failure; may be empty. In the calling thread.
  std::function<void(std::string_view line)> log;

  /// How often running operations are checked for deadlines and for errors that NCCL reports later.
  std::chrono::nanoseconds watch_period = std::chrono::milliseconds(10);

  /// How long ncclCommAbort may take. It usually takes milliseconds, but has no limit of its own.
  std::chrono::nanoseconds abort_budget = std::chrono::seconds(10);
  /// How long a group that ends well may wait for its peers to leave too, before it is aborted.
  std::chrono::nanoseconds leave_budget = std::chrono::seconds(10);

  /// Called from a thread of the back-end, once for each abort that did not return within its budget. The
  /// device's memory and streams cannot be trusted then, so end_process_when_stuck() is the usual choice.
  /// Empty: the thread is left behind, and nothing else is done.
  std::function<void(const core::Error&)> on_stuck;
};

/// The exit code of a process whose NCCL could not be aborted; the launcher restarts it.
inline constexpr int kAbortStuckExitCode = 98;

/// Writes the error to standard error and ends the process immediately with kAbortStuckExitCode: no
/// destructor could wait for the device.
std::function<void(const core::Error&)> end_process_when_stuck();

}  // namespace troupe::gpu
