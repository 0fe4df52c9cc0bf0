#include "apps/troupe/launch/ports.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "core/errors.hpp"

namespace troupe::apps {

using core::Errc;
using core::Result;
using posix::Descriptor;

namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Descriptor open_socket(int family) {
  Descriptor socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (socket.is_open()) ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  return socket;
}

int port_of(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

Result<Addresses> resolve(const std::string& address, int port, const std::string& flag) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code == 0) return Addresses(found, &::freeaddrinfo);
  return core::fail(Errc::invalid_argument, "{}: the address {} is not known here: {}", flag, address,
                    ::gai_strerror(code));
}

/// errno, or 0.
int bind_to(const addrinfo& at, const Descriptor& socket) {
  return socket.is_open() && ::bind(socket.get(), at.ai_addr, at.ai_addrlen) == 0 ? 0 : errno;
}

/// Whether nobody listens there; errno, or 0.
int try_to_listen(const addrinfo& at) {
  const Descriptor socket = open_socket(at.ai_family);
  const int reason = bind_to(at, socket);
  return reason != 0 || ::listen(socket.get(), 1) == 0 ? reason : errno;
}

}  // namespace

Result<ReservedPort> ReservedPort::any() {
  int reason = 0;
  for (const int family : {AF_INET6, AF_INET}) {
    Descriptor socket = open_socket(family);
    sockaddr_storage address{};
    address.ss_family = static_cast<sa_family_t>(family);
    socklen_t size = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (socket.is_open() && ::bind(socket.get(), generic, size) == 0 &&
        ::getsockname(socket.get(), generic, &size) == 0)
      return ReservedPort(std::move(socket), port_of(address));
    reason = errno;
  }
  return core::fail(Errc::io, "cannot find a free port: {}", std::strerror(reason));
}

Result<ReservedPort> ReservedPort::of(const std::string& address, int port, const std::string& flag) {
  const Addresses found = TRY(resolve(address, port, flag));
  int reason = EADDRNOTAVAIL;
  for (const auto* at = found.get(); at != nullptr; at = at->ai_next) {
    reason = try_to_listen(*at);
    Descriptor socket = open_socket(at->ai_family);
    if (reason == 0) reason = bind_to(*at, socket);
    if (reason == 0) return ReservedPort(std::move(socket), port);
    if (reason == EADDRINUSE) break;
  }
  if (reason == EADDRINUSE) {
    return core::fail(Errc::already_exists,
                      "port {} of {} is in use, perhaps by another job; choose another --master-port, or use "
                      "--standalone",
                      port, address);
  }
  return core::fail(Errc::invalid_argument, "cannot listen at {} port {}: {}; {} is to be this machine's",
                    address, port, std::strerror(reason), flag);
}

Result<void> check_own_address(const std::string& address, const std::string& flag) {
  const Addresses found = TRY(resolve(address, 0, flag));
  int reason = 0;
  for (const auto* at = found.get(); at != nullptr; at = at->ai_next) {
    reason = bind_to(*at, open_socket(at->ai_family));
    if (reason == 0) return {};
  }
  return core::fail(Errc::invalid_argument, "cannot listen at {}: {}; {} is to be this machine's", address,
                    std::strerror(reason), flag);
}

}  // namespace troupe::apps
