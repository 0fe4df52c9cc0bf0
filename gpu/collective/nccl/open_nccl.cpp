#include "gpu/collective/nccl/open_nccl.hpp"

#include <utility>

#include "core/errors.hpp"

#ifdef TROUPE_HAS_CUDA
#include "gpu/collective/nccl/cuda/cuda_port.hpp"
#include "gpu/collective/nccl/nccl_backend.hpp"
#endif

namespace troupe::gpu {

core::Result<std::unique_ptr<CollectiveBackend>> open_nccl_backend([[maybe_unused]] Device& device,
                                                                   [[maybe_unused]] int index,
                                                                   [[maybe_unused]] Rendezvous& rendezvous,
                                                                   [[maybe_unused]] NcclOptions options) {
#ifdef TROUPE_HAS_CUDA
  if (device.kind() != DeviceKind::cuda) {
    return core::fail(core::Errc::invalid_argument,
                      "nccl: expected a CUDA device, found '{}'; use shared_memory or tcp there",
                      device.description());
  }
  auto library = TRY(open_nccl_library());
  return std::make_unique<NcclBackend>(std::move(library), device, cuda_nccl_port(index), rendezvous,
                                       std::move(options));
#else
  return core::fail(core::Errc::unavailable,
                    "nccl: expected a build with the CUDA data plane, but this one has none; build with "
                    "-DTROUPE_CUDA=ON, or use shared_memory or tcp");
#endif
}

}  // namespace troupe::gpu
