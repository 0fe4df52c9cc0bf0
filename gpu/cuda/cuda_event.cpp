#include "gpu/cuda/cuda_event.hpp"

#include <algorithm>
#include <thread>

#include "core/errors.hpp"
#include "gpu/cuda/status.hpp"
#include "gpu/host/host_stream.hpp"

namespace troupe::gpu {
namespace {

constexpr std::chrono::microseconds kFirstPause{5};
constexpr std::chrono::microseconds kLongestPause{500};

}  // namespace

bool CudaEvent::is_complete() const {
  if (!is_recorded()) return true;
  const DeviceGuard guard(context_.device());
  const cudaError_t status = queried(cudaEventQuery(event_.native()));
  if (status == cudaErrorNotReady) return false;
  return context_.check(status, "cudaEventQuery") && !context_.failure.is_set();
}

core::Result<void> CudaEvent::wait(std::chrono::nanoseconds deadline) {
  const DeviceTime begin = host_now();
  auto pause = kFirstPause;
  while (!is_complete()) {
    TRY(context_.health());
    const auto left = deadline - (host_now() - begin);
    if (left <= std::chrono::nanoseconds(0)) {
      return core::fail(
          core::Errc::timeout,
          "expected an event of device {} to complete within {} ms, but work recorded before it still runs; "
          "look at the stream's trace for the task that does not end",
          context_.device(), std::chrono::duration_cast<std::chrono::milliseconds>(deadline).count());
    }
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(pause, left));
    pause = std::min(2 * pause, kLongestPause);
  }
  return {};
}

CudaEvent& cuda_event(EventView event) {
  auto* own = dynamic_cast<CudaEvent*>(event);
  CHECK(own != nullptr, "a CUDA stream takes events of CUDA devices");
  return *own;
}

}  // namespace troupe::gpu
