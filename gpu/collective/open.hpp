#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/result.hpp"
#include "gpu/collective/group.hpp"
#include "gpu/device.hpp"
#include "posix/authentication.hpp"

namespace troupe::gpu {

struct CollectiveOptions {
  std::string tcp_host = "127.0.0.1";  ///< this host, as other ranks reach it
  std::optional<posix::JobToken> key;  ///< TcpOptions::key
  /// For "automatic" with host memory: what is equal for the ranks of one host, 0 if all are on one; and
  /// what tcp_host is then, asked when a group has members on several hosts.
  std::uint64_t host = 0;
  std::function<core::Result<std::string>()> address_of_host;
  /// NcclOptions::register_memory. Errc::invalid_argument with back-ends for host memory.
  bool register_memory = false;
  /// Receives a line for the user, about problems that are not failures; may be empty.
  std::function<void(std::string_view line)> log;
};

/// Errc::invalid_argument unless it is "automatic", "shared_memory", "tcp" or "nccl".
core::Result<void> check_collectives(std::string_view name);

/// The back-end of this name for tensors of `device`, which open_device() opened under `device_name`.
/// "automatic" is nccl for GPUs; for host memory, shared_memory for groups on one host and tcp for others.
/// Errc::invalid_argument for unknown names and for back-ends that do not move this device's memory,
/// Errc::unavailable if the machine or the build lacks it. `device` and `rendezvous` must outlive the
/// back-end.
core::Result<std::unique_ptr<CollectiveBackend>> open_collectives(std::string_view name, Device& device,
                                                                  std::string_view device_name,
                                                                  Rendezvous& rendezvous,
                                                                  const CollectiveOptions& options = {});

}  // namespace troupe::gpu
