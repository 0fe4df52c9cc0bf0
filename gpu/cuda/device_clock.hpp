#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <mutex>

#include "core/result.hpp"
#include "gpu/cuda/event_pool.hpp"
#include "gpu/stream.hpp"

namespace troupe::gpu {

/// Converts device times, known only as differences of timing events, into the host's clock. Thread-safe.
class DeviceClock {
 public:
  explicit DeviceClock(int device) : device_(device) {}

  bool is_set() const;
  /// Synchronises the two clocks: records an event on an idle stream and waits for it, which blocks.
  /// Errc::timeout after `deadline`.
  core::Result<void> set(EventPool& timing_events, cudaStream_t idle_stream,
                         std::chrono::nanoseconds deadline);

  /// When a timing event completed. Later events may become the new origin: the driver counts milliseconds in
  /// fp32, which becomes coarse over hours.
  core::Result<DeviceTime> time_of(cudaEvent_t event);
  /// Takes over an event whose time was read, as the new origin, if the present one is old.
  void offer(PooledEvent event, DeviceTime time);

 private:
  const int device_;
  mutable std::mutex mutex_;  // guards origin_ and origin_time_
  PooledEvent origin_;
  DeviceTime origin_time_{};
};

}  // namespace troupe::gpu
