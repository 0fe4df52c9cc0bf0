#include "apps/troupe/bench/plain_loopback.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <string_view>

#include "core/errors.hpp"

namespace troupe::apps {
namespace {

using core::Errc;
using core::Result;
using posix::Descriptor;

// The system gets this much at once; more or less is slower.
constexpr std::size_t kAtOnce = std::size_t{1} << 20;

tl::unexpected<core::Error> socket_failure() {
  return core::fail(Errc::io, "bench: plain connections over loopback: {}", std::strerror(errno));
}

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

/// The settings that the transport of collectives uses on one host.
void set_up(const Descriptor& connection) {
  const int on = 1;
  constexpr std::string_view kPlain = "reno";
  setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(connection.get(), IPPROTO_TCP, TCP_CONGESTION, kPlain.data(), kPlain.size());
}

}  // namespace

Result<std::unique_ptr<PlainLoopback>> PlainLoopback::connect(gpu::Rendezvous& rendezvous, int index,
                                                              int ranks) {
  const Descriptor door(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in own = loopback(0);
  auto* const address = reinterpret_cast<sockaddr*>(&own);
  socklen_t bytes = sizeof own;
  if (!door.is_open() || bind(door.get(), address, bytes) != 0 || listen(door.get(), ranks) != 0 ||
      getsockname(door.get(), address, &bytes) != 0) {
    return socket_failure();
  }
  TRY(rendezvous.set(fmt::format("plain/{}", index), std::to_string(ntohs(own.sin_port))));
  std::unique_ptr<PlainLoopback> made(new PlainLoopback());
  made->connections_.resize(static_cast<std::size_t>(ranks));
  for (int peer = 0; peer < index; ++peer) {
    const auto port = TRY(rendezvous.get(fmt::format("plain/{}", peer), std::chrono::seconds(60)));
    const sockaddr_in there = loopback(static_cast<std::uint16_t>(std::stoi(port)));
    Descriptor connection(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(connection.get(), reinterpret_cast<const sockaddr*>(&there), sizeof there) != 0 ||
        send(connection.get(), &index, sizeof index, MSG_NOSIGNAL) != sizeof index) {
      return socket_failure();
    }
    made->connections_[static_cast<std::size_t>(peer)] = std::move(connection);
  }
  for (int callers = index + 1; callers < ranks; ++callers) {
    Descriptor connection(accept4(door.get(), nullptr, nullptr, SOCK_CLOEXEC));
    int peer = 0;
    if (recv(connection.get(), &peer, sizeof peer, MSG_WAITALL) != sizeof peer) return socket_failure();
    if (peer <= index || peer >= ranks)
      return core::fail(Errc::io, "bench: a stranger connected; run it again");
    made->connections_[static_cast<std::size_t>(peer)] = std::move(connection);
  }
  for (const Descriptor& connection : made->connections_) set_up(connection);
  return made;
}

Result<void> PlainLoopback::exchange(const std::vector<std::size_t>& to,
                                     const std::vector<std::size_t>& from) {
  // Memory is gone through as an operation goes through it.
  sent_.resize(std::max(sent_.size(), *std::ranges::max_element(to)), std::byte{1});
  received_.resize(std::max(received_.size(), *std::ranges::max_element(from)));
  std::vector<std::size_t> unsent = to;
  std::vector<std::size_t> unheard = from;
  const auto moved = [](ssize_t count, std::size_t& left) {
    if (count < 0 && errno != EAGAIN && errno != EINTR) return false;
    left -= static_cast<std::size_t>(std::max<ssize_t>(count, 0));
    return true;
  };
  while (true) {
    std::vector<pollfd> waiting;
    for (std::size_t i = 0; i < connections_.size(); ++i) {
      const int fd = connections_[i].get();
      if (unsent[i] > 0 && !moved(send(fd, sent_.data() + to[i] - unsent[i], std::min(unsent[i], kAtOnce),
                                       MSG_DONTWAIT | MSG_NOSIGNAL),
                                  unsent[i])) {
        return socket_failure();
      }
      if (unheard[i] > 0) {
        const ssize_t count =
            recv(fd, received_.data() + from[i] - unheard[i], std::min(unheard[i], kAtOnce), MSG_DONTWAIT);
        if (count == 0) return core::fail(Errc::io, "bench: a rank is gone");
        if (!moved(count, unheard[i])) return socket_failure();
      }
      const int events = (unsent[i] > 0 ? POLLOUT : 0) | (unheard[i] > 0 ? POLLIN : 0);
      if (events != 0) waiting.push_back({fd, static_cast<short>(events), 0});
    }
    if (waiting.empty()) return {};
    poll(waiting.data(), waiting.size(), 1000);
  }
}

}  // namespace troupe::apps
