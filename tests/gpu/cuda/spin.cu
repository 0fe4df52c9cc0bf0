#include "tests/gpu/cuda/spin.hpp"

#include <cuda_runtime.h>

namespace troupe::gpu {
namespace {

__global__ void spin_until_released(Spin* spin) {
  volatile Spin* seen = spin;
  seen->started = 1;
  constexpr long long kTicks = 20'000'000'000;
  const long long begin = clock64();
  while (seen->released == 0 && clock64() - begin < kTicks) __nanosleep(1000);
}

}  // namespace

cudaError_t launch_spin(Spin* spin, cudaStream_t stream) {
  void* arguments[] = {&spin};
  return cudaLaunchKernel(spin_until_released, dim3(1), dim3(1), arguments, 0, stream);
}

}  // namespace troupe::gpu
