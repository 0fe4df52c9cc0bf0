#include "actors/world/own_address.hpp"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "core/errors.hpp"

namespace troupe::actors {

namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

/// Connecting a datagram socket only looks up the route.
std::string address_on_the_way(const addrinfo& to) {
  const int socket = ::socket(to.ai_family, to.ai_socktype | SOCK_CLOEXEC, to.ai_protocol);
  if (socket < 0) return {};
  sockaddr_storage own{};
  socklen_t size = sizeof(own);
  char text[NI_MAXHOST];
  const bool found = ::connect(socket, to.ai_addr, to.ai_addrlen) == 0 &&
                     ::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
                     ::getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text, sizeof(text), nullptr, 0,
                                   NI_NUMERICHOST) == 0;
  ::close(socket);
  return found ? text : std::string();
}

}  // namespace

core::Result<std::string> own_address_towards(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  // Any port takes the same route.
  const auto service = std::to_string(port == 0 ? 1 : port);
  if (const int status = ::getaddrinfo(host.c_str(), service.c_str(), &hints, &list); status != 0) {
    return core::fail(core::Errc::unavailable, "the host '{}' is not known here: {}", host,
                      ::gai_strerror(status));
  }
  const Addresses addresses(list, &::freeaddrinfo);
  for (const auto* to = addresses.get(); to != nullptr; to = to->ai_next) {
    if (auto found = address_on_the_way(*to); !found.empty()) return found;
  }
  return core::fail(core::Errc::unavailable, "there is no route from here to '{}': {}", host,
                    std::strerror(errno));
}

bool is_loopback(const std::string& host) {
  if (host == "localhost" || host == "ip6-localhost") return true;
  in_addr four{};
  if (::inet_pton(AF_INET, host.c_str(), &four) == 1) return (ntohl(four.s_addr) >> 24) == IN_LOOPBACKNET;
  in6_addr six{};
  if (::inet_pton(AF_INET6, host.c_str(), &six) != 1) return false;
  return IN6_IS_ADDR_LOOPBACK(&six) || (IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == IN_LOOPBACKNET);
}

}  // namespace troupe::actors
