#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "core/result.hpp"
#include "gpu/device.hpp"
#include "gpu/simulated/timeline.hpp"

namespace troupe::gpu {

struct SimulatedDeviceOptions {
  std::string name = "simulated";
  std::chrono::nanoseconds task_latency = std::chrono::microseconds(5);  ///< minimum duration of every task
  double bytes_per_second = 1e12;                                        ///< for TaskCost::bytes_touched
  std::size_t memory_bytes = std::numeric_limits<std::size_t>::max();    ///< allocate() refuses more
};

/// A device in virtual time. Everything happens in the timeline's single thread, and nothing blocks but
/// synchronize() of streams, if somebody lets virtual time pass meanwhile (wait_with()). A task takes its
/// latency and cost, and its body runs at the end of that time: a reader that did not wait for a writer sees
/// the old bytes, and a writer that did not wait for a reader overwrites what is being read. Bytes are real,
/// time is not.
///
/// Destroying a non-empty stream drops the remaining tasks, as the death of a rank does; a Completion that
/// comes later is ignored. The timeline must outlive the device.
class SimulatedDevice final : public Device {
 public:
  SimulatedDevice(Timeline& timeline, SimulatedDeviceOptions options)
      : timeline_(timeline), options_(std::move(options)) {}

  /// Returns whether `ready` has become true before the deadline; false at once where nobody can wait.
  using Wait = std::function<bool(const std::function<bool()>& ready, std::chrono::nanoseconds deadline)>;
  void wait_with(Wait wait) { wait_ = std::move(wait); }
  const Wait& waits() const { return wait_; }

  /// From now on tasks take `factor` times their duration: an injectable fault. 1 is normal.
  void set_slowdown(double factor);

  DeviceKind kind() const override { return DeviceKind::simulated; }
  bool is_host_memory() const override { return true; }
  std::string description() const override;
  core::Result<Buffer> allocate(std::size_t bytes) override;
  /// Counts as device memory, like everything here.
  core::Result<Buffer> allocate_staging(std::size_t bytes) override { return allocate(bytes); }
  core::Result<Stream> create_stream(StreamOptions options) override;
  core::Result<Event> create_event() override;
  DeviceTime now() const override { return timeline_.now(); }
  void observe(TaskObserver observer) override { observer_ = std::move(observer); }

  /// The present duration of a task with this cost.
  std::chrono::nanoseconds duration_of(TaskCost cost) const;
  Timeline& timeline() const { return timeline_; }
  const TaskObserver& observer() const { return observer_; }

 private:
  Timeline& timeline_;
  SimulatedDeviceOptions options_;
  double slowdown_ = 1;
  std::size_t allocated_bytes_ = 0;
  TaskObserver observer_;
  Wait wait_;
};

}  // namespace troupe::gpu
