#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

#include "core/profiler.hpp"
#include "core/result.hpp"
#include "gpu/cuda/cuda_device.hpp"
#include "gpu/cuda/device_clock.hpp"
#include "gpu/cuda/event_pool.hpp"
#include "gpu/cuda/event_waiter.hpp"
#include "gpu/cuda/failure.hpp"
#include "gpu/cuda/occupancy.hpp"
#include "gpu/host/observer_slot.hpp"

namespace troupe::gpu {

/// State shared by the objects of one device; it outlives them all.
class CudaContext {
 public:
  CudaContext(CudaOptions options, CudaDeviceInfo facts);

  int device() const { return info.index; }

  /// Records a failure of a call that cannot return one. True for success.
  bool check(cudaError_t status, std::string_view call);
  /// Like check(), for the result of a pool.
  template <class T>
  bool check(const core::Result<T>& result) {
    if (!result) failure.set(result.error());
    return result.has_value();
  }
  /// The error in which every wait ends once the device has failed.
  core::Result<void> health() const;
  std::uint64_t next_stream() { return streams_++; }

  const CudaOptions options;
  const CudaDeviceInfo info;
  const std::unique_ptr<core::Profiler> profiler;  ///< null when no profiler is attached
  ObserverSlot observer;
  DeviceFailure failure;
  EventPool events;
  EventPool timing_events;
  DeviceClock clock;
  Occupancy occupancy;
  EventWaiter waiter;
  cudaMemPool_t pool = nullptr;  ///< of the device's MemoryPool, while that exists
  std::atomic<int> given_up{0};  ///< streams that did not drain: their work may write what is free by now

 private:
  std::atomic<std::uint64_t> streams_{0};
};

}  // namespace troupe::gpu
