#include "tests/nccl_emulation/emulated_backend.hpp"

#include <utility>

namespace troupe::gpu {

std::unique_ptr<NcclBackend> make_emulated_nccl(NcclApi api, Device& device, Rendezvous& rendezvous,
                                                NcclOptions options) {
  NcclDevicePort port;
  port.name = "host:0";
  port.native = native_of;
  return std::make_unique<NcclBackend>(make_nccl_library(std::move(api)).value(), device, std::move(port),
                                       rendezvous, std::move(options));
}

}  // namespace troupe::gpu
