#include "gpu/collective/tcp/hub.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/errors.hpp"

namespace troupe::gpu {
namespace {

using core::Errc;
using core::Result;
using posix::Countdown;
using posix::Descriptor;

std::string without_address(const TcpOptions& options, const std::string& why) {
  const bool by_host = options.interface.empty();
  return fmt::format("tcp: cannot listen on {} '{}': {}; give an address or interface of this machine",
                     by_host ? "host" : "interface", by_host ? options.host : options.interface, why);
}

SocketAddress with_port_zero(const sockaddr* address) {
  SocketAddress found;
  found.bytes = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::memcpy(&found.address, address, found.bytes);
  if (address->sa_family == AF_INET)
    reinterpret_cast<sockaddr_in*>(&found.address)->sin_port = 0;
  else
    reinterpret_cast<sockaddr_in6*>(&found.address)->sin6_port = 0;
  return found;
}

/// Whether one can listen there; otherwise errno says why not.
bool is_own(const SocketAddress& address) {
  const Descriptor door(::socket(address.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return door.is_open() &&
         ::bind(door.get(), reinterpret_cast<const sockaddr*>(&address.address), address.bytes) == 0;
}

Result<SocketAddress> address_of_host(const TcpOptions& options) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(options.host.c_str(), nullptr, &hints, &found); error != 0)
    return core::fail(Errc::unavailable, "{}", without_address(options, ::gai_strerror(error)));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> all(found, &freeaddrinfo);
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (one->ai_family != AF_INET && one->ai_family != AF_INET6) continue;
    const SocketAddress address = with_port_zero(one->ai_addr);
    if (is_own(address)) return address;
  }
  return core::fail(Errc::unavailable, "{}", without_address(options, std::strerror(errno)));
}

Result<SocketAddress> address_of_interface(const TcpOptions& options) {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0)
    return core::fail(Errc::unavailable, "{}", without_address(options, std::strerror(errno)));
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> all(found, &freeifaddrs);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* one = found; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != family) continue;
      if (options.interface != one->ifa_name) continue;
      const SocketAddress address = with_port_zero(one->ifa_addr);
      if (is_own(address)) return address;
    }
  }
  return core::fail(Errc::unavailable, "{}",
                    without_address(options, "there is no such interface with an address"));
}

}  // namespace

Result<std::shared_ptr<TcpHub>> TcpHub::open(const TcpOptions& options) {
  const SocketAddress own =
      options.interface.empty() ? TRY(address_of_host(options)) : TRY(address_of_interface(options));
  Descriptor events(::epoll_create1(EPOLL_CLOEXEC));
  Descriptor stop(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event entry{.events = EPOLLIN, .data = {.fd = stop.get()}};
  if (!events.is_open() || !stop.is_open() ||
      ::epoll_ctl(events.get(), EPOLL_CTL_ADD, stop.get(), &entry) != 0) {
    return core::fail(Errc::io, "tcp: no descriptors left: {}; raise the limit of open files (ulimit -n)",
                      std::strerror(errno));
  }
  return std::shared_ptr<TcpHub>(new TcpHub(own, options.key, std::move(events), std::move(stop)));
}

TcpHub::TcpHub(SocketAddress own, std::optional<posix::JobToken> key, Descriptor events, Descriptor stop)
    : own_(own), key_(key), events_(std::move(events)), stop_(std::move(stop)), thread_([this] { work(); }) {}

TcpHub::~TcpHub() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  const std::uint64_t one = 1;
  (void)!::write(stop_.get(), &one, sizeof one);
  thread_.join();
}

std::chrono::nanoseconds TcpHub::absence() {
  const std::lock_guard lock(mutex_);
  const auto now = Countdown::Clock::now();
  look();
  return now - back_ < Countdown::kLatest ? absence_ : std::chrono::nanoseconds::zero();
}

void TcpHub::look() {
  const auto now = Countdown::Clock::now();
  if (now - next_look_ > Countdown::kLatest) {
    absence_ = now - next_look_;
    back_ = now;
  }
  next_look_ = std::max(next_look_, now);
}

void TcpHub::add(int events, MovedByHub& mesh) {
  const std::lock_guard lock(meshes_mutex_);
  meshes_[events] = &mesh;
  epoll_event entry{.events = EPOLLIN, .data = {.fd = events}};
  CHECK(::epoll_ctl(events_.get(), EPOLL_CTL_ADD, events, &entry) == 0, "an epoll watches another");
}

void TcpHub::remove(int events) {
  const std::lock_guard lock(meshes_mutex_);
  ::epoll_ctl(events_.get(), EPOLL_CTL_DEL, events, nullptr);
  meshes_.erase(events);
}

void TcpHub::work() {
  ::pthread_setname_np(::pthread_self(), "tcp hub");
  constexpr auto kWait = std::chrono::duration_cast<std::chrono::milliseconds>(Countdown::kLook);
  std::array<epoll_event, 16> happened;
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      look();
      next_look_ = Countdown::Clock::now() + kWait;
    }
    const int count = ::epoll_wait(events_.get(), happened.data(), static_cast<int>(happened.size()),
                                   static_cast<int>(kWait.count()));
    const std::lock_guard lock(meshes_mutex_);
    for (int i = 0; i < count; ++i) {
      const auto found = meshes_.find(happened[static_cast<std::size_t>(i)].data.fd);
      if (found != meshes_.end()) found->second->move();
    }
  }
}

}  // namespace troupe::gpu
