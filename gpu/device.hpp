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

/// Where tensors live and move. Owns nothing that it hands out; it must outlive its buffers, streams and
/// events. All methods may be called from any thread.
class Device {
 public:
  virtual ~Device() = default;

  virtual DeviceKind kind() const = 0;
  /// Whether the host reads and writes what allocate() gives as memory of its own. Otherwise only streams
  /// reach it, and bytes of the host come there and back through allocate_staging().
  virtual bool is_host_memory() const = 0;
  /// One line for people: "host, 2 cores, AVX2".
  virtual std::string description() const = 0;

  /// `bytes` of zeroed memory, aligned to 256 bytes. Errc::out_of_memory says how much was asked for.
  virtual core::Result<Buffer> allocate(std::size_t bytes) = 0;
  /// `bytes` of zeroed memory of the host, aligned to 256 bytes, which streams copy from and to without a
  /// thread that waits: pinned, where the device asks for that. What it lends is bounded by its options;
  /// Errc::out_of_memory beyond. Allocate such buffers once and use them again.
  virtual core::Result<Buffer> allocate_staging(std::size_t bytes) = 0;
  virtual core::Result<Stream> create_stream(StreamOptions options) = 0;
  virtual core::Result<Event> create_event() = 0;

  /// The device's clock, as in TaskRecord.
  virtual DeviceTime now() const = 0;

  /// Installs the observer of all tasks (called from the streams' threads, one call per task). Set it before
  /// the first task; an empty function removes it.
  virtual void observe(TaskObserver observer) = 0;

  /// A profiler of the device that watches this process; null when there is none.
  virtual core::Profiler* profiler() { return nullptr; }
};

}  // namespace troupe::gpu
