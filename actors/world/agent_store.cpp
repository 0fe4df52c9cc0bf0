// The bytes are those of torch/csrc/distributed/c10d/TCPStoreBackend of PyTorch 2.x: numbers are little
// endian, a string is its length as a u64 and then its bytes, and one byte says what is asked.
#include "actors/world/agent_store.hpp"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "core/errors.hpp"
#include "core/number.hpp"
#include "posix/entropy.hpp"

namespace troupe::actors {

namespace {

using core::Errc;
using core::Result;
using posix::Descriptor;
using Steady = std::chrono::steady_clock;

enum class Query : std::uint8_t { validate = 0, set = 1, get = 3, check = 5, ping = 13 };
constexpr std::uint32_t kMagic = 0x3C85F7CE;
constexpr std::uint64_t kMostValueBytes = 4096;

template <class Number>
void append(std::string& text, Number number) {
  for (std::size_t i = 0; i < sizeof number; ++i) text += static_cast<char>(number >> (8 * i));
}

void append(std::string& text, const std::string& value) {
  append(text, static_cast<std::uint64_t>(value.size()));
  text += value;
}

std::string query(Query kind) {
  return {static_cast<char>(kind)};
}

std::uint64_t number_in(const std::string& bytes) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    number |= std::uint64_t{static_cast<std::uint8_t>(bytes[i])} << (8 * i);
  return number;
}

/// Waits until the socket can be read or written; false if the time ran out.
bool wait_for(int socket, short events, Steady::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Steady::now()).count();
    if (left <= 0) return false;
    pollfd entry{socket, events, 0};
    if (::poll(&entry, 1, static_cast<int>(std::min<std::int64_t>(left, 1'000'000))) > 0) return true;
  }
}

using NameOf = int (*)(int, sockaddr*, socklen_t*);
std::string address_of(int socket, NameOf name_of) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  std::array<char, NI_MAXHOST> text{};
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (name_of(socket, generic, &size) != 0 ||
      ::getnameinfo(generic, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0)
    return {};
  return text.data();
}

/// Or errno of what failed.
std::pair<Descriptor, int> connect_to(const addrinfo& to, Steady::time_point deadline) {
  Descriptor socket(::socket(to.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.is_open()) return {Descriptor(), errno};
  int reason = ::connect(socket.get(), to.ai_addr, to.ai_addrlen) == 0 ? 0 : errno;
  if (reason == EINPROGRESS) {
    if (!wait_for(socket.get(), POLLOUT, deadline)) return {Descriptor(), ETIMEDOUT};
    socklen_t size = sizeof reason;
    if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &reason, &size) != 0) reason = errno;
  }
  return {reason == 0 ? std::move(socket) : Descriptor(), reason};
}

core::Error no_store(const Endpoint& where, const std::string& found) {
  return {Errc::mismatch,
          fmt::format("TORCHELASTIC_USE_AGENT_STORE is True, so the store of torchrun's agent is expected at "
                      "{}, but {}; start all ranks with torchrun of PyTorch 2.1 or later, or with `troupe "
                      "launch`",
                      to_string(where), found)};
}

}  // namespace

Result<AgentStore> AgentStore::connect(const std::string& host, std::uint16_t port, Time deadline) {
  const Endpoint where{host, port};
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
      status != 0)
    return core::fail(Errc::unavailable, "the host '{}' of torchrun's agent is not known here: {}", host,
                      ::gai_strerror(status));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(list, &::freeaddrinfo);
  int reason = 0;
  for (const auto* to = addresses.get(); to != nullptr; to = to->ai_next) {
    auto [socket, failure] = connect_to(*to, deadline);
    reason = failure;
    if (failure != 0) continue;
    AgentStore store(std::move(socket), where);
    store.own_address_ = address_of(store.socket_.get(), ::getsockname);
    store.address_ = address_of(store.socket_.get(), ::getpeername);
    TRY(store.introduce(deadline));
    return store;
  }
  return core::fail(Errc::peer_lost,
                    "torchrun's agent cannot be reached at {}: {}; see whether it is running",
                    to_string(where), std::strerror(reason));
}

/// A TCPStore is silent until it is asked, and answers a ping with its number.
Result<void> AgentStore::introduce(Time deadline) {
  const auto nonce = static_cast<std::uint32_t>(posix::entropy());
  std::string greeting = query(Query::validate);
  append(greeting, kMagic);
  greeting += query(Query::ping);
  append(greeting, nonce);
  TRY(write(greeting, deadline));
  const auto answer = read(sizeof nonce, deadline);
  if (!answer && answer.error().code == Errc::timeout)
    return core::fail(Errc::timeout, "{}", no_store(where_, "who listens there says nothing").message);
  if (!answer) return tl::unexpected(no_store(where_, "who listens there hangs up"));
  if (number_in(*answer) == nonce) return {};
  return tl::unexpected(
      no_store(where_, fmt::format("who listens there answers {}", core::quoted_excerpt(*answer))));
}

Result<void> AgentStore::set(const std::string& key, const std::string& value, Time deadline) {
  std::string request = query(Query::set);
  append(request, key);
  append(request, value);
  return write(request, deadline);
}

Result<std::optional<std::string>> AgentStore::find_key(const std::string& key, Time deadline) {
  std::string request = query(Query::check);
  append(request, std::uint64_t{1});
  append(request, key);
  TRY(write(request, deadline));
  if (number_in(TRY(read(1, deadline))) != 0) return std::nullopt;
  request = query(Query::get);
  append(request, key);
  TRY(write(request, deadline));
  const auto bytes = number_in(TRY(read(sizeof(std::uint64_t), deadline)));
  if (bytes > kMostValueBytes)
    return tl::unexpected(no_store(where_, fmt::format("its value of {} has {} bytes", key, bytes)));
  return TRY(read(static_cast<std::size_t>(bytes), deadline));
}

Result<void> AgentStore::write(const std::string& bytes, Time deadline) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t sent = ::send(socket_.get(), bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (sent > 0) {
      done += static_cast<std::size_t>(sent);
    } else if (errno == EAGAIN || errno == EINTR) {
      if (!wait_for(socket_.get(), POLLOUT, deadline))
        return core::fail(Errc::timeout, "the store of torchrun's agent at {} takes nothing",
                          to_string(where_));
    } else {
      return core::fail(Errc::peer_lost, "the store of torchrun's agent at {} is gone: {}", to_string(where_),
                        std::strerror(errno));
    }
  }
  return {};
}

Result<std::string> AgentStore::read(std::size_t bytes, Time deadline) {
  std::string text(bytes, '\0');
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t got = ::recv(socket_.get(), text.data() + done, bytes - done, 0);
    if (got > 0) {
      done += static_cast<std::size_t>(got);
    } else if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      if (!wait_for(socket_.get(), POLLIN, deadline))
        return core::fail(Errc::timeout, "the store of torchrun's agent at {} does not answer",
                          to_string(where_));
    } else {
      return core::fail(Errc::peer_lost, "the store of torchrun's agent at {} is gone: {}", to_string(where_),
                        got == 0 ? "it hung up" : std::strerror(errno));
    }
  }
  return text;
}

}  // namespace troupe::actors
