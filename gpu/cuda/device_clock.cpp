#include "gpu/cuda/device_clock.hpp"

#include <thread>
#include <utility>

#include "core/errors.hpp"
#include "gpu/cuda/status.hpp"
#include "gpu/host/host_stream.hpp"

namespace troupe::gpu {
namespace {

/// fp32 milliseconds resolve it to better than 100 ns.
constexpr std::chrono::seconds kOldOrigin{1};

}  // namespace

bool DeviceClock::is_set() const {
  std::lock_guard lock(mutex_);
  return origin_.native() != nullptr;
}

core::Result<void> DeviceClock::set(EventPool& timing_events, cudaStream_t idle_stream,
                                    std::chrono::nanoseconds deadline) {
  PooledEvent event = TRY(timing_events.take());
  TRY(cuda_result(cudaEventRecord(event.native(), idle_stream), "cudaEventRecord", device_));
  const DeviceTime begin = host_now();
  for (;;) {
    const cudaError_t status = queried(cudaEventQuery(event.native()));
    if (status == cudaSuccess) break;
    if (status != cudaErrorNotReady) return cuda_result(status, "cudaEventQuery", device_);
    if (host_now() - begin >= deadline) {
      return core::fail(
          core::Errc::timeout,
          "expected an event on an idle stream of device {} to complete within {} ms, so that "
          "its clock can be told, but it has not; look with nvidia-smi who keeps the device busy",
          device_, std::chrono::duration_cast<std::chrono::milliseconds>(deadline).count());
    }
    // A sleep would delay the origin's time on the host.
    std::this_thread::yield();
  }
  std::lock_guard lock(mutex_);
  origin_ = std::move(event);
  origin_time_ = host_now();
  return {};
}

core::Result<DeviceTime> DeviceClock::time_of(cudaEvent_t event) {
  std::lock_guard lock(mutex_);
  float milliseconds = 0;
  TRY(cuda_result(cudaEventElapsedTime(&milliseconds, origin_.native(), event), "cudaEventElapsedTime",
                  device_));
  const std::chrono::duration<double, std::milli> elapsed(milliseconds);
  return origin_time_ + std::chrono::duration_cast<DeviceTime>(elapsed);
}

void DeviceClock::offer(PooledEvent event, DeviceTime time) {
  std::lock_guard lock(mutex_);
  if (time - origin_time_ < kOldOrigin) return;
  origin_ = std::move(event);
  origin_time_ = time;
}

}  // namespace troupe::gpu
