#include "tests/support/direct_writes.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace troupe::tests {

namespace {

std::atomic<bool> is_refusing{false};
std::atomic<std::size_t> refused{0};

bool refuses(int file) {
  if (!is_refusing) return false;
  const int flags = ::fcntl(file, F_GETFL);
  if (flags < 0 || (flags & O_DIRECT) == 0) return false;
  refused += 1;
  return true;
}

}  // namespace

RefusedDirectWrites::RefusedDirectWrites() {
  refused = 0;
  is_refusing = true;
}

RefusedDirectWrites::~RefusedDirectWrites() {
  is_refusing = false;
}

std::size_t RefusedDirectWrites::count() const {
  return refused;
}

}  // namespace troupe::tests

extern "C" {

ssize_t __real_write(int file, const void* bytes, size_t count);

ssize_t __wrap_write(int file, const void* bytes, size_t count) {
  if (!troupe::tests::refuses(file)) return __real_write(file, bytes, count);
  errno = EINVAL;
  return -1;
}
}
