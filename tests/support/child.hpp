#pragma once

#include <cstdint>
#include <functional>

namespace troupe::tests {

struct ChildEnd {
  int exit_code = -1;  ///< 128 + n when it was killed by signal n
  /// Resident memory at its highest, beyond what this process had when it forked.
  std::uint64_t grown_bytes = 0;
};

/// What a child may take: beyond the first SIGXCPU kills it, beyond the second, as when it waits for what
/// never comes, SIGALRM.
struct ChildLimits {
  unsigned cpu_seconds = 60;
  unsigned seconds = 100;
};

/// Runs code in a forked child, which leaves with what the code returns. No other thread of this process may
/// be at work.
ChildEnd run_in_child(const std::function<int()>& code, ChildLimits limits = {});

/// Sanitizers take memory of their own, so that there is nothing to measure.
bool is_sanitized();

}  // namespace troupe::tests
