#include "gpu/collective/shared_memory/peer_watch.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>

#include "core/errors.hpp"

namespace troupe::gpu {

core::Result<ProcessIdentity> identify(std::int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  const std::string text(std::istreambuf_iterator<char>(file), {});
  // The second field is the name in parentheses and may contain anything; the third follows the last ')'.
  const auto name_end = text.rfind(')');
  std::uint64_t start_time = 0;
  if (name_end != std::string::npos) {
    std::istringstream rest(text.substr(name_end + 1));
    std::string skipped;
    for (int field = 3; field < 22; ++field) rest >> skipped;
    rest >> start_time;
  }
  if (start_time == 0) {
    return core::fail(core::Errc::not_found,
                      "expected process {} in /proc, found none; ranks of a host must share "
                      "one PID namespace",
                      pid);
  }
  return ProcessIdentity{pid, start_time};
}

core::Result<PeerWatch> PeerWatch::open(std::span<const ProcessIdentity> members) {
  PeerWatch watch;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const ProcessIdentity& peer = members[i];
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
    const auto found = identify(peer.pid);
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
