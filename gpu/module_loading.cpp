#include "gpu/module_loading.hpp"

#ifdef TROUPE_HAS_CUDA
#include "gpu/cuda/cuda_device.hpp"
#endif

namespace troupe::gpu {

bool loads_kernels_lazily() {
#ifdef TROUPE_HAS_CUDA
  return cuda_loads_lazily();
#else
  return false;
#endif
}

}  // namespace troupe::gpu
