#pragma once

#include <poll.h>

#include <span>
#include <vector>

#include "core/result.hpp"
#include "posix/process_identity.hpp"

namespace troupe::gpu {

/// Detects which of the group's processes are dead. Holds one descriptor per other process. Thread-safe after
/// open(). Move only.
class PeerWatch {
 public:
  /// Processes by member; this process itself need not be watched and may be listed several times.
  static core::Result<PeerWatch> open(std::span<const posix::ProcessIdentity> members);

  PeerWatch() = default;
  PeerWatch(PeerWatch&&) noexcept = default;
  PeerWatch& operator=(PeerWatch&&) noexcept;
  ~PeerWatch();

  /// The members whose processes have ended. One system call, microseconds.
  std::vector<int> find_dead() const;

 private:
  std::vector<pollfd> descriptors_;
  std::vector<int> members_;       // per descriptor
  std::vector<int> dead_at_open_;  // gone before they could be watched
};

}  // namespace troupe::gpu
