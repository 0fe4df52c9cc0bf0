#pragma once

#include <memory>

#include "gpu/collective/nccl/nccl_backend.hpp"
#include "tests/nccl_emulation/fake_nccl.hpp"

namespace troupe::gpu {

/// The back-end of a member whose device is the host's and whose library is `api`.
std::unique_ptr<NcclBackend> make_emulated_nccl(NcclApi api, Device& device, Rendezvous& rendezvous,
                                                NcclOptions options = {});

}  // namespace troupe::gpu
