#pragma once

namespace troupe::gpu {

/// Whether kernels of this process are loaded when they are first launched, which may have to wait for what
/// runs on the device; false without CUDA. After list_cuda_devices().
bool loads_kernels_lazily();

}  // namespace troupe::gpu
