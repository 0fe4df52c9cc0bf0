#pragma once

#include "gpu/collective/nccl/options.hpp"

namespace troupe::gpu {

/// What NCCL needs to know about the CUDA device `index` of this process.
NcclDevicePort cuda_nccl_port(int index);

}  // namespace troupe::gpu
