#include "posix/folder_watch.hpp"

#include <poll.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "core/errors.hpp"

namespace troupe::posix {

core::Result<FolderWatch> FolderWatch::open(const std::string& folder) {
  Descriptor descriptor(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!descriptor.is_open() || ::inotify_add_watch(descriptor.get(), folder.c_str(), IN_MOVED_TO) < 0)
    return core::fail(core::Errc::io, "cannot watch {}: {}", folder, ::strerror(errno));
  return FolderWatch(std::move(descriptor));
}

void FolderWatch::wait(std::chrono::milliseconds patience) const {
  pollfd changed{descriptor_.get(), POLLIN, 0};
  if (::poll(&changed, 1, static_cast<int>(patience.count())) <= 0) return;
  std::array<char, 4096> events{};
  while (::read(descriptor_.get(), events.data(), events.size()) > 0) continue;
}

}  // namespace troupe::posix
