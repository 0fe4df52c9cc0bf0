#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/result.hpp"
#include "gpu/collective/group.hpp"
#include "gpu/device.hpp"

namespace troupe::gpu {

struct CollectiveOptions {
  std::string gloo_host = "127.0.0.1";  ///< this host, as other ranks reach it
  /// NcclOptions::register_memory. Errc::invalid_argument with back-ends for host memory.
  bool register_memory = false;
  /// Receives a line for the user, about problems that are not failures; may be empty.
  std::function<void(std::string_view line)> log;
};

/// Errc::invalid_argument unless it is "automatic", "shared_memory", "gloo" or "nccl".
core::Result<void> check_collectives(std::string_view name);

/// The back-end of this name for tensors of `device`, which open_device() opened under `device_name`.
/// "automatic" is nccl for GPUs and shared_memory for host memory. Errc::invalid_argument for unknown names
/// and for back-ends that do not move this device's memory, Errc::unavailable if the machine or the build
/// lacks it. `device` and `rendezvous` must outlive the back-end.
core::Result<std::unique_ptr<CollectiveBackend>> open_collectives(std::string_view name, Device& device,
                                                                  std::string_view device_name,
                                                                  Rendezvous& rendezvous,
                                                                  const CollectiveOptions& options = {});

}  // namespace troupe::gpu
