#pragma once

#include <cstdint>

#include "core/result.hpp"

namespace troupe::posix {

/// A process, distinguished from a later one with the same number by its start time.
struct ProcessIdentity {
  std::int64_t pid = 0;
  std::uint64_t start_time = 0;  ///< clock ticks since boot, field 22 of /proc/<pid>/stat

  friend bool operator==(const ProcessIdentity&, const ProcessIdentity&) = default;
};

/// Errc::not_found when there is no such process (in this PID namespace).
core::Result<ProcessIdentity> identify(std::int64_t pid);

}  // namespace troupe::posix
