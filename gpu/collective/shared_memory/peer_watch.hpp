#pragma once

#include <poll.h>

#include <cstdint>
#include <span>
#include <vector>

#include "core/result.hpp"

namespace troupe::gpu {

/// A process, distinguished from a later one with the same number by its start time.
struct ProcessIdentity {
  std::int64_t pid = 0;
  std::uint64_t start_time = 0;  ///< clock ticks since boot, field 22 of /proc/<pid>/stat

  friend bool operator==(const ProcessIdentity&, const ProcessIdentity&) = default;
};

/// Errc::not_found when there is no such process (in this PID namespace).
core::Result<ProcessIdentity> identify(std::int64_t pid);

/// Detects which of the group's processes are dead. Holds one descriptor per other process. Thread-safe after
/// open(). Move only.
class PeerWatch {
 public:
  /// Processes by member; this process itself need not be watched and may be listed several times.
  static core::Result<PeerWatch> open(std::span<const ProcessIdentity> members);

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
