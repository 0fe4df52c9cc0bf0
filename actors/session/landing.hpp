#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "core/result.hpp"
#include "gpu/buffer.hpp"
#include "gpu/device.hpp"

namespace troupe::actors {

/// Where bytes from files come to lie: in a device's memory itself when the host reaches it, and else in as
/// much memory of the host, from where deliver() copies them.
class Landing {
 public:
  /// Errc::out_of_memory.
  static core::Result<Landing> create(gpu::Device& device, std::vector<gpu::BufferView> destinations);

  /// One for each destination.
  std::vector<std::span<std::byte>> memory();
  /// Everything is in its place afterwards. Errc::timeout after `deadline`.
  core::Result<void> deliver(std::chrono::nanoseconds deadline);

 private:
  Landing(gpu::Device& device, std::vector<gpu::BufferView> destinations)
      : device_(&device), destinations_(std::move(destinations)) {}

  gpu::Device* device_;
  std::vector<gpu::BufferView> destinations_;
  std::vector<std::byte> bounce_;  ///< of all destinations, one after the other; empty when not needed
};

}  // namespace troupe::actors
