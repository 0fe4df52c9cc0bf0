#pragma once

#include <memory>

#include "core/result.hpp"
#include "gpu/collective/group.hpp"
#include "gpu/collective/nccl/options.hpp"
#include "gpu/device.hpp"

namespace troupe::gpu {

/// NcclBackend over this machine's library, for `device`, which is the GPU `index` of this process.
/// Errc::unavailable if this build has no CUDA or the machine has no NCCL. `device` and `rendezvous` must
/// outlive the back-end.
core::Result<std::unique_ptr<CollectiveBackend>> open_nccl_backend(Device& device, int index,
                                                                   Rendezvous& rendezvous,
                                                                   NcclOptions options = {});

}  // namespace troupe::gpu
