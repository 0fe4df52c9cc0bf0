#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace troupe::apps {

/// A stream that nobody waits for: what the reader does not take yet is kept in memory, and beyond a limit in
/// an unlinked file, in order. So a console that stands still never stops a rank. Whole pieces are written
/// only by us, so lines are never torn.
class Outlet {
 public:
  /// Keeps `fd` for its life, without owning it, and leaves its flags as they are.
  explicit Outlet(int fd, std::size_t memory_bytes = std::size_t{1} << 20);
  ~Outlet();
  Outlet(const Outlet&) = delete;
  Outlet& operator=(const Outlet&) = delete;

  int fd() const { return fd_; }
  void write(std::string_view text);
  /// Writes as much as goes without waiting.
  void flush();
  bool is_empty() const { return pending_.empty() && spill_begin_ == spill_end_; }
  /// Flushes until all is written, or until the reader has taken nothing for so long.
  void drain(int patience_milliseconds);

 private:
  void refill();

  int fd_;
  std::size_t memory_bytes_;
  std::string pending_;
  int spill_fd_ = -1;
  long spill_begin_ = 0;
  long spill_end_ = 0;
};

}  // namespace troupe::apps
