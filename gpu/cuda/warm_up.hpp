#pragma once

#include "core/result.hpp"
#include "gpu/cuda/cuda_context.hpp"
#include "gpu/cuda/memory_pool.hpp"

namespace troupe::gpu {

/// Runs every kernel once. The driver loads kernels when they are first launched, and may wait for the whole
/// device to do so, which is a deadlock once collectives are in flight; this also detects a device for which
/// this build has no kernels.
core::Result<void> warm_up(CudaContext& context, MemoryPool& memory);

}  // namespace troupe::gpu
