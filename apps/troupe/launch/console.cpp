#include "apps/troupe/launch/console.hpp"

#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include <fcntl.h>
#include <algorithm>
#include <cerrno>

namespace troupe::apps {

Outlet::Outlet(int fd, std::size_t memory_bytes) : fd_(fd), memory_bytes_(memory_bytes) {}

Outlet::~Outlet() {
  if (spill_fd_ >= 0) ::close(spill_fd_);
}

void Outlet::write(std::string_view text) {
  const bool spilling = spill_begin_ != spill_end_;
  if (!spilling && pending_.size() + text.size() <= memory_bytes_) {
    pending_ += text;
    return flush();
  }
  if (spill_fd_ < 0) {
    const char* directory = ::getenv("TMPDIR");
    spill_fd_ = ::open(directory ? directory : "/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  }
  const ssize_t written = ::pwrite(spill_fd_, text.data(), text.size(), spill_end_);
  if (written > 0) spill_end_ += written;
  flush();
}

void Outlet::flush() {
  for (;;) {
    if (pending_.empty()) refill();
    if (pending_.empty()) return;
    pollfd ready{fd_, POLLOUT, 0};
    if (::poll(&ready, 1, 0) != 1) return;
    // A pipe that is ready takes this many bytes without waiting.
    const std::size_t size = std::min<std::size_t>(pending_.size(), PIPE_BUF);
    const ssize_t written = ::write(fd_, pending_.data(), size);
    if (written > 0) {
      pending_.erase(0, static_cast<std::size_t>(written));
    } else if (written < 0 && errno != EINTR && errno != EAGAIN) {
      // Nobody reads any more: what is left has no place to go.
      pending_.clear();
      spill_begin_ = spill_end_;
    } else {
      return;
    }
  }
}

void Outlet::refill() {
  if (spill_begin_ == spill_end_) return;
  pending_.resize(std::min(memory_bytes_, static_cast<std::size_t>(spill_end_ - spill_begin_)));
  const ssize_t got = ::pread(spill_fd_, pending_.data(), pending_.size(), spill_begin_);
  pending_.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  spill_begin_ = got > 0 ? spill_begin_ + got : spill_end_;
  if (spill_begin_ != spill_end_) return;
  spill_begin_ = spill_end_ = 0;
  [[maybe_unused]] const int result = ::ftruncate(spill_fd_, 0);
}

void Outlet::drain(int patience_milliseconds) {
  for (flush(); !is_empty(); flush()) {
    pollfd ready{fd_, POLLOUT, 0};
    if (::poll(&ready, 1, patience_milliseconds) == 0) return;
  }
}

}  // namespace troupe::apps
