#include "gpu/cuda/cuda_context.hpp"

#include <utility>

#include "gpu/cuda/nvtx_profiler.hpp"
#include "gpu/cuda/status.hpp"

namespace troupe::gpu {

CudaContext::CudaContext(CudaOptions given, CudaDeviceInfo facts)
    : options(std::move(given)),
      info(std::move(facts)),
      profiler(open_nvtx_profiler()),
      events(info.index, EventPool::Timing::without),
      timing_events(info.index, EventPool::Timing::with),
      clock(info.index),
      waiter(info.index, options.poll_period, failure, options.on_failure) {
  failure.watch([this] { waiter.wake(); });
}

bool CudaContext::check(cudaError_t status, std::string_view call) {
  if (status == cudaSuccess) return true;
  failure.set(cuda_error(status, call, device()));
  return false;
}

core::Result<void> CudaContext::health() const {
  if (!failure.is_set()) return {};
  return tl::unexpected<core::Error>(*failure.get());
}

}  // namespace troupe::gpu
