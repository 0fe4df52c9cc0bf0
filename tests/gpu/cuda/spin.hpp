#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace troupe::gpu {

/// Two words of pinned memory: the kernel sets `started`, and ends when the host has set `released`, or after
/// about ten seconds, so that no test hangs a GPU.
struct Spin {
  std::uint32_t started = 0;
  std::uint32_t released = 0;
};
cudaError_t launch_spin(Spin* spin, cudaStream_t stream);

}  // namespace troupe::gpu
