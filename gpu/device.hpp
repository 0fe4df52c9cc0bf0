#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "core/profiler.hpp"
#include "core/result.hpp"
#include "gpu/buffer.hpp"
#include "gpu/stream.hpp"

namespace troupe::gpu {

enum class DeviceKind { host, simulated, cuda };

/// One task that ran on a stream, for traces.
struct TaskRecord {
  std::string_view stream;
  std::string_view label;
  DeviceTime begin{};
  DeviceTime end{};
};

using TaskObserver = std::function<void(const TaskRecord&)>;

/// Where tensors are stored and moved. It does not own what it hands out; it must outlive its buffers,
/// streams and events. All methods may be called from any thread.
class Device {
 public:
  virtual ~Device() = default;

  virtual DeviceKind kind() const = 0;
  /// Whether the host can access the memory from allocate() directly. Otherwise only streams can, and host
  /// bytes get there and back through allocate_staging().
  virtual bool is_host_memory() const = 0;
  /// One line for the user: "host, 2 cores, AVX2".
  virtual std::string description() const = 0;

  /// `bytes` of zeroed memory, aligned to 256 bytes. Errc::out_of_memory says how much was requested.
  virtual core::Result<Buffer> allocate(std::size_t bytes) = 0;
  /// `bytes` of zeroed host memory, aligned to 256 bytes, which streams copy from and to without a waiting
  /// thread: pinned, if the device requires that. The device's options limit the total; Errc::out_of_memory
  /// beyond it. Allocate such buffers once and reuse them.
  virtual core::Result<Buffer> allocate_staging(std::size_t bytes) = 0;
  virtual core::Result<Stream> create_stream(StreamOptions options) = 0;
  virtual core::Result<Event> create_event() = 0;

  /// The device's clock, as in TaskRecord.
  virtual DeviceTime now() const = 0;
  /// How long the calling thread has waited for one of the host's processors since it began; 0 where that is
  /// not known. It takes some microseconds to ask.
  virtual DeviceTime run_delay() const { return {}; }

  /// Installs the observer of all tasks (called from the streams' threads, one call per task). Set it before
  /// the first task; an empty function removes it.
  virtual void observe(TaskObserver observer) = 0;

  /// Is told what the host reads and writes of the device's memory (gpu/order/); null where nothing is
  /// checked.
  virtual TaskOrder* order() { return nullptr; }

  /// A profiler of the device that watches this process; null if there is none.
  virtual core::Profiler* profiler() { return nullptr; }
};

}  // namespace troupe::gpu
