#include "apps/troupe/launch/console.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace troupe::apps {

namespace {

constexpr long kMostBytesInMemory = 64L << 20;

}  // namespace

Outlet::Outlet(int fd, std::size_t memory_bytes) : fd_(fd), memory_bytes_(memory_bytes) {}

Outlet::~Outlet() {
  if (spill_fd_ >= 0) ::close(spill_fd_);
}

void Outlet::write(std::string_view text) {
  if (!is_spilling() && pending_.size() + text.size() <= memory_bytes_) {
    pending_ += text;
    return flush();
  }
  if (spill_fd_ < 0) open_spill();
  if (spill(note_of_missing_lines().append(text))) {
    missing_lines_ = 0;
  } else {
    ++missing_lines_;
  }
  flush();
}

void Outlet::open_spill() {
  const char* chosen = ::getenv("TMPDIR");
  const std::string directory = chosen ? chosen : "/tmp";
  spill_fd_ = ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (spill_fd_ >= 0) return;
  // Not every file system has files without a name.
  std::string name = directory + "/troupe-output-XXXXXX";
  spill_fd_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (spill_fd_ >= 0) {
    ::unlink(name.c_str());
    return;
  }
  spill_fd_ = ::memfd_create("troupe-output", MFD_CLOEXEC);
  most_spilled_bytes_ = kMostBytesInMemory;
}

/// All of the text, or nothing.
bool Outlet::spill(std::string_view text) {
  const auto bytes = static_cast<long>(text.size());
  if (spill_end_ + bytes > most_spilled_bytes_) return false;
  if (::pwrite(spill_fd_, text.data(), text.size(), spill_end_) != bytes) return false;
  spill_end_ += bytes;
  return true;
}

std::string Outlet::note_of_missing_lines() const {
  if (missing_lines_ == 0) return {};
  return fmt::format(
      "[troupe] {} lines are missing here: nobody read them in time, and there was no room to keep them; "
      "let TMPDIR name a directory with more\n",
      missing_lines_);
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
      missing_lines_ = 0;
    } else {
      return;
    }
  }
}

void Outlet::refill() {
  if (spill_begin_ == spill_end_) {
    pending_ = note_of_missing_lines();
    missing_lines_ = 0;
    return;
  }
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
