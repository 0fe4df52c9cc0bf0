#pragma once

#include <cstddef>

namespace troupe::tests {

/// While it lives, files that were opened with O_DIRECT refuse to be written, with EINVAL, as on a file
/// system that accepts only the flag. Needs a test binary that is linked with --wrap=write. There is one at a
/// time.
class RefusedDirectWrites {
 public:
  RefusedDirectWrites();
  ~RefusedDirectWrites();
  RefusedDirectWrites(const RefusedDirectWrites&) = delete;
  RefusedDirectWrites& operator=(const RefusedDirectWrites&) = delete;

  /// Calls that were refused.
  std::size_t count() const;
};

}  // namespace troupe::tests
