#include "gpu/collective/open.hpp"

#include "core/errors.hpp"
#include "gpu/collective/automatic_backend.hpp"
#include "gpu/collective/nccl/open_nccl.hpp"
#include "gpu/collective/shared_memory/shared_memory_backend.hpp"
#include "gpu/collective/tcp/tcp_backend.hpp"
#include "gpu/devices.hpp"

namespace troupe::gpu {

core::Result<void> check_collectives(std::string_view name) {
  if (name == "automatic" || name == "shared_memory" || name == "tcp" || name == "nccl") return {};
  if (name == "gloo") {
    return core::fail(
        core::Errc::invalid_argument,
        "the collectives gloo are gone; tcp, Troupe's own transport between hosts, took their place");
  }
  return core::fail(core::Errc::invalid_argument,
                    "there are no collectives called '{}'; use automatic, shared_memory, tcp or nccl", name);
}

core::Result<std::unique_ptr<CollectiveBackend>> open_collectives(std::string_view name, Device& device,
                                                                  std::string_view device_name,
                                                                  Rendezvous& rendezvous,
                                                                  const CollectiveOptions& options) {
  TRY(check_collectives(name));
  const bool is_gpu = device.kind() == DeviceKind::cuda;
  const bool by_host = name == "automatic" && !is_gpu && options.host != 0;
  if (name == "automatic") name = is_gpu ? "nccl" : "shared_memory";
  if (is_gpu != (name == "nccl")) {
    return core::fail(core::Errc::invalid_argument, "{} does not move the memory of '{}'; use {}", name,
                      device.description(), is_gpu ? "nccl" : "shared_memory or tcp");
  }
  if (options.register_memory && !is_gpu) {
    return core::fail(core::Errc::invalid_argument,
                      "{} has no memory to register; leave --register-memory out, or use GPUs and nccl",
                      name);
  }
  if (by_host) {
    std::unique_ptr<CollectiveBackend> backend =
        std::make_unique<AutomaticBackend>(rendezvous, options.host, options.address_of_host, options.key);
    return backend;
  }
  if (name == "shared_memory") {
    std::unique_ptr<CollectiveBackend> backend = std::make_unique<SharedMemoryBackend>(rendezvous);
    return backend;
  }
  if (name == "tcp") {
    TcpOptions tcp;
    tcp.host = options.tcp_host;
    tcp.key = options.key;
    std::unique_ptr<CollectiveBackend> backend = TRY(TcpBackend::open(rendezvous, tcp));
    return backend;
  }
  NcclOptions nccl;
  // Collectives run alongside backward, to which they leave most of the device.
  nccl.max_ctas = 16;
  nccl.on_stuck = end_process_when_stuck();
  nccl.register_memory = options.register_memory;
  nccl.log = options.log;
  return open_nccl_backend(device, cuda_index_of(device_name).value_or(0), rendezvous, std::move(nccl));
}

}  // namespace troupe::gpu
