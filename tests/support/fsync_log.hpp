#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

namespace troupe::tests {

/// A call of fsync(), which a test binary sees when it is linked with --wrap=fsync.
struct Fsync {
  std::string path;         ///< of the file as it was called then
  std::uint64_t bytes = 0;  ///< that it had; 0 for a directory

  friend bool operator==(const Fsync&, const Fsync&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Fsync& call) {
    return out << call.path << " (" << call.bytes << " bytes)";
  }
};

/// Notes the calls of all threads while it lives. There is one at a time.
class FsyncLog {
 public:
  FsyncLog();
  ~FsyncLog();
  FsyncLog(const FsyncLog&) = delete;
  FsyncLog& operator=(const FsyncLog&) = delete;

  /// The calls since the last take(), in order.
  std::vector<Fsync> take();
};

}  // namespace troupe::tests
