#pragma once

#include <cstddef>

namespace troupe::actors {

/// Bytes of device memory that one rank takes by purpose, all before the first step.
struct DeviceMemory {
  std::size_t at_rest = 0;  ///< parameters, gradients, main values and optimizer states
  std::size_t pools = 0;    ///< full parameters and full gradients of units on demand
  std::size_t staging = 0;  ///< of exchanges and the optimizer, square sums and the verdict

  std::size_t total() const { return at_rest + pools + staging; }

  friend bool operator==(const DeviceMemory&, const DeviceMemory&) = default;
};

}  // namespace troupe::actors
