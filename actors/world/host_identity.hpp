#pragma once

#include <cstdint>
#include <string>

namespace troupe::actors {

/// What tells the hosts of a job apart.
struct HostIdentity {
  std::string name;
  /// Equal for processes that can share memory, watch each other and meet on the loopback interface: the same
  /// boot of one machine, and the same name, network, processes and /dev/shm on it. Never 0.
  std::uint64_t id = 0;
};

/// The identity of the host on which this process runs.
HostIdentity host_identity();

}  // namespace troupe::actors
