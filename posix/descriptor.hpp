#pragma once

#include <unistd.h>

#include <utility>

namespace troupe::posix {

/// Owns a file descriptor, or none. Move only.
class Descriptor {
 public:
  Descriptor() = default;
  /// Takes ownership of the descriptor; -1 is none.
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

}  // namespace troupe::posix
