#include "tests/support/fsync_log.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <mutex>
#include <system_error>
#include <utility>

namespace troupe::tests {

namespace {

std::mutex mutex;  // guards what follows
bool is_noting = false;
std::vector<Fsync> calls;

void note(int file) {
  const std::lock_guard lock(mutex);
  if (!is_noting) return;
  std::error_code error;
  struct stat status {};
  if (::fstat(file, &status) != 0) return;
  const auto bytes = S_ISDIR(status.st_mode) ? 0 : static_cast<std::uint64_t>(status.st_size);
  calls.push_back({std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", file), error), bytes});
}

}  // namespace

FsyncLog::FsyncLog() {
  const std::lock_guard lock(mutex);
  is_noting = true;
  calls.clear();
}

FsyncLog::~FsyncLog() {
  const std::lock_guard lock(mutex);
  is_noting = false;
}

std::vector<Fsync> FsyncLog::take() {
  const std::lock_guard lock(mutex);
  return std::exchange(calls, {});
}

}  // namespace troupe::tests

extern "C" {

int __real_fsync(int file);

int __wrap_fsync(int file) {
  troupe::tests::note(file);
  return __real_fsync(file);
}
}
