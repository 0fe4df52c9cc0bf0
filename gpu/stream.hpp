#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/result.hpp"

namespace troupe::gpu {

/// Nanoseconds since an origin of the device's own: real time on real devices, virtual time in simulation.
using DeviceTime = std::chrono::nanoseconds;

/// An event as its device implements it. Implementations derive from it; users hold Event and EventView.
class EventState {
 public:
  virtual ~EventState() = default;
  /// True when the work that preceded the last record() is done, and when nothing was ever recorded.
  virtual bool is_complete() const = 0;
  /// Blocks the calling host thread until is_complete(). Errc::timeout after `deadline`. Refused in
  /// simulation (Errc::unavailable) when the event is not complete: nothing may block there.
  virtual core::Result<void> wait(std::chrono::nanoseconds deadline) = 0;
};

/// Refers to an event without owning it.
using EventView = EventState*;

/// Owns an event. Must outlive the streams' use of it.
using Event = std::unique_ptr<EventState>;

/// What a task costs, for simulation and for traces. Real devices take the time they take.
struct TaskCost {
  std::uint64_t bytes_touched = 0;
};

class DeviceKernels;
class TaskOrder;

/// Called exactly once when a started task has ended. May be called from any thread, also from inside
/// start().
using Completion = std::function<void()>;

/// One FIFO queue of a device. Tasks of one stream run one after another; tasks of different streams run at
/// the same time unless an event orders them. All methods may be called from any thread; none waits for the
/// device except synchronize(). What a task touches must stay alive until the task has run.
class StreamQueue {
 public:
  virtual ~StreamQueue() = default;

  virtual std::string_view name() const = 0;

  /// Runs `body` on the host when everything before it is done. `label` names it in traces and must live as
  /// long as the program (a literal). Host and simulated devices only.
  virtual void enqueue(std::string_view label, TaskCost cost, std::function<void()> body) = 0;

  /// Like enqueue(), but the task has ended only when the Completion given to `start` has been called: this
  /// is how collectives occupy a stream. In simulation `start` must return without waiting.
  virtual void enqueue_async(std::string_view label, std::function<void(Completion)> start) = 0;

  /// `event` completes when everything enqueued so far is done. Recording again moves it.
  virtual void record(EventView event) = 0;

  /// Later tasks of this stream start only after the work that preceded the latest record() of `event` before
  /// this call. An event never recorded holds nothing up.
  virtual void wait(EventView event) = 0;

  /// Calls `callback` (from a thread of the device) when everything enqueued so far is done. It must be short
  /// and must not wait: it posts a message.
  virtual void notify(std::function<void()> callback) = 0;

  /// Blocks the calling host thread until the stream is empty. Errc::timeout after `deadline`. Refused in
  /// simulation (Errc::unavailable) when the stream is not empty.
  virtual core::Result<void> synchronize(std::chrono::nanoseconds deadline) = 0;

  /// The kernels of a device with its own memory (gpu/device_kernels.hpp), enqueued on this stream; null
  /// where kernels run on the host as bodies of tasks. For gpu/kernels.cpp.
  virtual DeviceKernels* kernels() { return nullptr; }

  /// Is told what a task reads and writes, before it is enqueued (gpu/order/); null where nothing is checked.
  virtual TaskOrder* order() { return nullptr; }
  /// The stream itself, within what checks it.
  virtual StreamQueue* bare() { return this; }

  /// For kernels and libraries that work with the device's native streams: calls `launch` once, immediately,
  /// with that stream (a cudaStream_t) and with its device current; what it enqueues is one task. It returns
  /// the status (a cudaError_t); a status other than 0 is a failure of the device. False, without a call, on
  /// devices that have no native streams. `label` is as in enqueue().
  virtual bool run_native(std::string_view label, const std::function<int(void* native)>& launch) {
    (void)label;
    (void)launch;
    return false;
  }
};

/// Refers to a stream without owning it.
using StreamView = StreamQueue*;

/// Owns a stream. Destroying it waits for what is enqueued.
using Stream = std::unique_ptr<StreamQueue>;

struct StreamOptions {
  std::string name;  ///< names the track in traces, for example "communication"
  int priority = 0;  ///< higher runs first where the device can tell; 0 is usual, -1 for background copies
};

}  // namespace troupe::gpu
