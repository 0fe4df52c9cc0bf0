#pragma once

#include <cstdint>
#include <functional>

namespace troupe::tests {

struct ChildEnd {
  int exit_code = -1;  ///< 128 + n when it was killed by signal n
  /// Resident memory at its highest, beyond what this process had when it forked.
  std::uint64_t grown_bytes = 0;
};

/// Runs code in a forked child, which leaves with what the code returns. A child that computes for more than
/// `cpu_seconds` is killed by SIGXCPU, one that waits for what never comes by SIGALRM after twice as long. No
/// other thread of this process may be at work.
ChildEnd run_in_child(const std::function<int()>& code, unsigned cpu_seconds = 60);

/// Sanitizers take memory of their own, so that there is nothing to measure.
bool is_sanitized();

}  // namespace troupe::tests
