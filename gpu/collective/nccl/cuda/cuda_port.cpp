#include "gpu/collective/nccl/cuda/cuda_port.hpp"

#include <cuda_runtime_api.h>

#include <memory>

#include "core/errors.hpp"
#include "gpu/cuda/cuda_stream.hpp"
#include "gpu/cuda/status.hpp"

namespace troupe::gpu {

NcclDevicePort cuda_nccl_port(int index) {
  NcclDevicePort port;
  port.name = fmt::format("cuda:{}", index);
  port.native = [](StreamView stream) -> NativeStream { return cuda_stream(stream).native(); };
  port.make_current = [index]() -> core::Result<NcclCurrentDevice> {
    auto guard = std::make_shared<DeviceGuard>(index);
    const cudaError_t status = guard->status();
    if (status == cudaSuccess) return guard;
    return core::fail(core::Errc::unavailable,
                      "cuda:{}: cudaSetDevice ended in {}; the device is lost or was never there: see "
                      "nvidia-smi",
                      index, cudaGetErrorString(status));
  };
  return port;
}

}  // namespace troupe::gpu
