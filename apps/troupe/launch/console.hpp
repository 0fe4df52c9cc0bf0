#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>

namespace troupe::apps {

/// A stream that nobody waits for: what the reader does not take yet is kept in memory, and beyond a limit in
/// an unlinked file, in order. So a console that stands still never stops a rank. Whole pieces are written
/// only by us, so lines are never torn.
///
/// The file is in TMPDIR. Where none can be made there, 64 MiB more are kept in memory. Where that is used
/// up, or the disk is full, whole lines are left out, and a line in their place says how many.
class Outlet {
 public:
  /// Keeps `fd` for its life, without owning it, and leaves its flags as they are.
  explicit Outlet(int fd, std::size_t memory_bytes = std::size_t{1} << 20);
  ~Outlet();
  Outlet(const Outlet&) = delete;
  Outlet& operator=(const Outlet&) = delete;

  int fd() const { return fd_; }
  /// One line with its newline.
  void write(std::string_view text);
  /// Writes as much as goes without waiting.
  void flush();
  bool is_empty() const { return pending_.empty() && !is_spilling(); }
  /// Flushes until all is written, or until the reader has taken nothing for so long.
  void drain(int patience_milliseconds);

 private:
  bool is_spilling() const { return spill_begin_ != spill_end_ || missing_lines_ > 0; }
  void open_spill();
  bool spill(std::string_view text);
  void refill();
  std::string note_of_missing_lines() const;

  int fd_;
  std::size_t memory_bytes_;
  std::string pending_;
  int spill_fd_ = -1;
  long spill_begin_ = 0;
  long spill_end_ = 0;
  long most_spilled_bytes_ = std::numeric_limits<long>::max();
  std::size_t missing_lines_ = 0;  ///< left out after what is spilled
};

}  // namespace troupe::apps
