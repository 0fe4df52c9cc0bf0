#include "gpu/collective/shared_memory/peer_watch.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/errors.hpp"

namespace troupe::gpu {

core::Result<PeerWatch> PeerWatch::open(std::span<const posix::ProcessIdentity> members) {
  PeerWatch watch;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const posix::ProcessIdentity& peer = members[i];
    if (peer.pid == getpid()) continue;
    const int descriptor = static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0));
    if (descriptor < 0 && errno != ESRCH) {
      return core::fail(core::Errc::unavailable,
                        "cannot watch process {}: {}; shared_memory needs pidfd_open (Linux 5.3 or later)",
                        peer.pid, std::strerror(errno));
    }
    if (descriptor >= 0) {
      watch.descriptors_.push_back({.fd = descriptor, .events = POLLIN, .revents = 0});
      watch.members_.push_back(static_cast<int>(i));
    }
    // The number may already belong to another process; the descriptor always refers to the same process.
    const auto found = posix::identify(peer.pid);
    if (descriptor < 0 || !found || *found != peer) watch.dead_at_open_.push_back(static_cast<int>(i));
  }
  return watch;
}

PeerWatch& PeerWatch::operator=(PeerWatch&& other) noexcept {
  std::swap(descriptors_, other.descriptors_);
  std::swap(members_, other.members_);
  std::swap(dead_at_open_, other.dead_at_open_);
  return *this;
}

PeerWatch::~PeerWatch() {
  for (const pollfd& entry : descriptors_) close(entry.fd);
}

std::vector<int> PeerWatch::find_dead() const {
  std::vector<int> dead = dead_at_open_;
  std::vector<pollfd> entries = descriptors_;
  if (poll(entries.data(), entries.size(), 0) <= 0) return dead;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].revents != 0) dead.push_back(members_[i]);
  }
  return dead;
}

}  // namespace troupe::gpu
