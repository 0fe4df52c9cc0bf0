#include "gpu/collective/tcp/introduction.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <utility>

#include "core/errors.hpp"
#include "core/list.hpp"
#include "gpu/collective/job_failure.hpp"
#include "gpu/collective/operations.hpp"
#include "gpu/collective/secret.hpp"

namespace troupe::gpu {
namespace {

using core::Errc;
using core::Result;
using posix::Descriptor;
using Clock = std::chrono::steady_clock;

/// Where a member listens and what its callers must know.
struct Doorplate {
  std::string secret;
  std::string host;
  std::string port;
  std::string proof;  ///< of what besides the secret: kOfKey or kOfSecrets

  std::string text() const { return secret + ' ' + host + ' ' + port + ' ' + proof; }
  std::string where() const { return host + " port " + port; }
};
constexpr const char* kOfKey = "key";
constexpr const char* kOfSecrets = "none";

// A caller says who it is, with a number that it has just drawn; it hears another, with a proof; it proves
// itself; and it is welcome.
constexpr std::size_t kSecretBytes = 32;
constexpr std::size_t kIndexDigits = 8;
constexpr std::string_view kCalls = "TROUPE call ";
constexpr std::string_view kWelcome = "welcome!";
constexpr std::size_t kGreetingBytes = kCalls.size() + kIndexDigits + sizeof(posix::Nonce);
constexpr std::size_t kAnswerBytes = sizeof(posix::Nonce) + sizeof(posix::Proof);

template <class Bytes>
std::string text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string announcement_of(int index) {
  return fmt::format("{}{:0{}}", kCalls, index, kIndexDigits);
}

/// What two members prove to each other.
class Acquaintance {
 public:
  /// `key` is the job's, or zeros; `group` names the group and `secrets` are the caller's and the host's.
  Acquaintance(const posix::JobToken& key, const std::string& group, const std::string& secrets)
      : key_(posix::prove(key, bytes_of("troupe collectives 1\n" + group + "\n" + secrets))) {}

  /// By "caller" or "host", when both have drawn a number.
  std::string proof(std::string_view by, int caller, int host, const std::string& numbers) const {
    return text_of(posix::prove(key_, transcript(by, caller, host, numbers)));
  }
  bool is_proof(const std::string& proof, std::string_view by, int caller, int host,
                const std::string& numbers) const {
    posix::Proof found{};
    if (proof.size() != found.size()) return false;
    std::memcpy(found.data(), proof.data(), proof.size());
    return posix::is_proof(found, key_, transcript(by, caller, host, numbers));
  }

 private:
  static std::vector<std::byte> bytes_of(const std::string& text) {
    const auto* const begin = reinterpret_cast<const std::byte*>(text.data());
    return {begin, begin + text.size()};
  }
  static std::vector<std::byte> transcript(std::string_view by, int caller, int host,
                                           const std::string& numbers) {
    return bytes_of(fmt::format("{} {} {}\n", by, caller, host) + numbers);
  }

  posix::Proof key_;
};

/// The timeout for poll().
int milliseconds_until(Clock::time_point give_up) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(give_up - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000));
}

/// Reads until `said` has `bytes`. True if it has, empty while more may come, false if none will.
std::optional<bool> hear(const Descriptor& connection, std::size_t bytes, std::string& said) {
  std::array<char, kAnswerBytes> buffer{};
  while (said.size() < bytes) {
    const ssize_t count =
        recv(connection.get(), buffer.data(), std::min(bytes - said.size(), buffer.size()), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::nullopt;
    if (count <= 0) return false;
    said.append(buffer.data(), static_cast<std::size_t>(count));
  }
  return true;
}

/// This few bytes fit into any socket's buffer.
bool say(const Descriptor& connection, const std::string& text) {
  return send(connection.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(text.size());
}

Result<std::pair<Descriptor, Doorplate>> open_door(const SocketAddress& own, bool has_key) {
  const auto* address = reinterpret_cast<const sockaddr*>(&own.address);
  Descriptor door(socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!door.is_open() || bind(door.get(), address, own.bytes) != 0 || listen(door.get(), SOMAXCONN) != 0) {
    return core::fail(Errc::io, "tcp: cannot listen: {}; look at the limits of open files and ports",
                      std::strerror(errno));
  }
  SocketAddress bound{.bytes = sizeof(sockaddr_storage)};
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  auto* found = reinterpret_cast<sockaddr*>(&bound.address);
  if (getsockname(door.get(), found, &bound.bytes) != 0 ||
      getnameinfo(found, bound.bytes, host.data(), host.size(), port.data(), port.size(),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return core::fail(Errc::io, "tcp: the address of an own socket cannot be read: {}", std::strerror(errno));
  }
  return std::pair(std::move(door),
                   Doorplate{TRY(make_secret()), host.data(), port.data(), has_key ? kOfKey : kOfSecrets});
}

/// The process by which one member connects to all others.
class Introduction {
 public:
  Introduction(const GroupOptions& group, JobFailure& failure, int self, Descriptor door,
               std::vector<Doorplate> doorplates, const posix::JobToken& key)
      : group_(group),
        failure_(failure),
        self_(self),
        door_(std::move(door)),
        doorplates_(std::move(doorplates)),
        connections_(group.members.size()) {
    const auto name = fmt::format("{} {} {}", group.job, group.epoch.value, group.name);
    for (int peer = 0; peer < size(); ++peer) {
      const Doorplate& caller = doorplate(std::max(peer, self_));
      const Doorplate& host = doorplate(std::min(peer, self_));
      acquaintances_.emplace_back(key, name, caller.secret + host.secret);
    }
  }

  Result<std::vector<Introduced>> run(Clock::time_point give_up) {
    // No member waits for one after it, so none wait in a circle.
    for (int peer = 0; peer < self_; ++peer) TRY(call(peer, give_up));
    while (missing() != 0) TRY(admit(give_up));
    std::vector<Introduced> introduced(connections_.size());
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == self_) continue;
      set_up(connection(peer));
      introduced[static_cast<std::size_t>(peer)] = {std::move(connection(peer)), doorplate(peer).where()};
    }
    return introduced;
  }

 private:
  /// A caller that has not yet sent enough.
  struct Caller {
    Descriptor connection;
    std::string said;
    int index = 0;        ///< in the group, once it was answered
    std::string numbers;  ///< the caller's and this member's
  };

  /// No small message waits for others. Between sockets of one host, what the system does against jams on the
  /// way costs half of the speed, where it is BBR; elsewhere the choice is the administrator's.
  static void set_up(const Descriptor& connection) {
    const int on = 1;
    setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    SocketAddress here{.bytes = sizeof(sockaddr_storage)};
    SocketAddress there = here;
    const auto address = [](SocketAddress& of) { return reinterpret_cast<sockaddr*>(&of.address); };
    if (getsockname(connection.get(), address(here), &here.bytes) != 0) return;
    if (getpeername(connection.get(), address(there), &there.bytes) != 0) return;
    if (!is_same_host(here, there)) return;
    constexpr std::string_view kPlain = "reno";
    setsockopt(connection.get(), IPPROTO_TCP, TCP_CONGESTION, kPlain.data(), kPlain.size());
  }

  static bool is_same_host(const SocketAddress& one, const SocketAddress& other) {
    if (one.address.ss_family != other.address.ss_family) return false;
    if (one.address.ss_family == AF_INET) {
      const auto address = [](const SocketAddress& of) {
        return reinterpret_cast<const sockaddr_in*>(&of.address)->sin_addr.s_addr;
      };
      return address(one) == address(other);
    }
    const auto* const own = reinterpret_cast<const sockaddr_in6*>(&one.address);
    const auto* const its = reinterpret_cast<const sockaddr_in6*>(&other.address);
    return std::memcmp(&own->sin6_addr, &its->sin6_addr, sizeof own->sin6_addr) == 0;
  }

  int size() const { return static_cast<int>(group_.members.size()); }

  /// Waits for any of the descriptors; false if the time ran out, or if waiting has become pointless.
  bool wait_for(std::span<pollfd> descriptors, Clock::time_point give_up) const {
    while (Clock::now() < give_up && !failure_.look()) {
      const int patience = std::min(milliseconds_until(give_up), kLookAroundMilliseconds);
      if (poll(descriptors.data(), descriptors.size(), patience) > 0) return true;
    }
    return false;
  }

  Descriptor& connection(int peer) { return connections_[peer]; }
  const Doorplate& doorplate(int peer) const { return doorplates_[static_cast<std::size_t>(peer)]; }
  core::Rank rank(int peer) const { return group_.members[static_cast<std::size_t>(peer)]; }

  std::ptrdiff_t missing() const {
    return std::count_if(connections_.begin() + self_ + 1, connections_.end(),
                         [](const Descriptor& one) { return !one.is_open(); });
  }

  Result<void> call(int peer, Clock::time_point give_up) {
    while (!connection(peer).is_open()) {
      if (Clock::now() >= give_up) return late({rank(peer)});
      Descriptor attempt = TRY(reach(peer, give_up));
      // If this connection is closed, the peer had too many strangers connecting.
      const std::string number = text_of(posix::random_nonce());
      if (!say(attempt, announcement_of(self_) + number)) continue;
      std::string said;
      if (!TRY(listen_for(attempt, kAnswerBytes, said, peer, give_up))) continue;
      const std::string numbers = number + said.substr(0, sizeof(posix::Nonce));
      const Acquaintance& acquaintance = acquaintances_[peer];
      if (!acquaintance.is_proof(said.substr(sizeof(posix::Nonce)), "host", self_, peer, numbers)) {
        return core::fail(Errc::peer_lost,
                          "group '{}': who answers rank {} at {} is not rank {}, which must be gone or has "
                          "another job token; look at that rank",
                          group_.name, rank(self_).value, doorplate(peer).where(), rank(peer).value);
      }
      if (!say(attempt, acquaintance.proof("caller", self_, peer, numbers))) continue;
      said.clear();
      if (!TRY(listen_for(attempt, kWelcome.size(), said, peer, give_up)) || said != kWelcome) continue;
      connection(peer) = std::move(attempt);
    }
    return {};
  }

  /// False if the other side closed the connection.
  Result<bool> listen_for(const Descriptor& connection, std::size_t bytes, std::string& said, int peer,
                          Clock::time_point give_up) {
    std::optional<bool> heard;
    while (!(heard = hear(connection, bytes, said))) {
      pollfd entry{connection.get(), POLLIN, 0};
      if (!wait_for({&entry, 1}, give_up)) return late({rank(peer)});
    }
    return *heard;
  }

  /// A connection to the address where the peer listens.
  Result<Descriptor> reach(int peer, Clock::time_point give_up) const {
    const Doorplate& plate = doorplate(peer);
    addrinfo hints{};
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (getaddrinfo(plate.host.c_str(), plate.port.c_str(), &hints, &found) != 0) {
      return core::fail(Errc::mismatch, "group '{}': '{}' of rank {} is not an address; run one build on all",
                        group_.name, plate.host, rank(peer).value);
    }
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> address(found, &freeaddrinfo);
    Descriptor attempt(socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!attempt.is_open()) {
      return core::fail(
          Errc::io,
          "group '{}': rank {} cannot open a socket to reach rank {}: {}; raise its limit of open "
          "files (ulimit -n)",
          group_.name, rank(self_).value, rank(peer).value, std::strerror(errno));
    }
    int failure = connect(attempt.get(), found->ai_addr, found->ai_addrlen) == 0 ? 0 : errno;
    if (failure == EINPROGRESS) {
      pollfd entry{attempt.get(), POLLOUT, 0};
      if (!wait_for({&entry, 1}, give_up)) return late({rank(peer)});
      socklen_t bytes = sizeof failure;
      if (getsockopt(attempt.get(), SOL_SOCKET, SO_ERROR, &failure, &bytes) != 0) failure = errno;
    }
    if (failure != 0) {
      return core::fail(Errc::peer_lost,
                        "group '{}': rank {} found nobody at {}, where rank {} listened ({}); look at "
                        "that rank and at the network between them",
                        group_.name, rank(self_).value, plate.where(), rank(peer).value,
                        std::strerror(failure));
    }
    return attempt;
  }

  /// One round: accepts new callers, reads from the others, and admits those that are members.
  Result<void> admit(Clock::time_point give_up) {
    std::vector<pollfd> entries{{door_.get(), POLLIN, 0}};
    for (const Caller& caller : callers_) entries.push_back({caller.connection.get(), POLLIN, 0});
    if (!wait_for(entries, give_up)) return late(silent());
    std::vector<Caller> still_there;
    for (Caller& caller : callers_) {
      if (!listen_to(caller)) still_there.push_back(std::move(caller));
    }
    callers_ = std::move(still_there);
    return entries.front().revents == 0 ? core::Result<void>() : open_to_one();
  }

  Result<void> open_to_one() {
    Caller caller{Descriptor(accept4(door_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)), {}};
    if (!caller.connection.is_open()) {
      const bool is_out_of_something =
          errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      if (!is_out_of_something) return {};
      return core::fail(Errc::io, "group '{}': rank {} cannot take a connection: {}; look at its limits",
                        group_.name, rank(self_).value, std::strerror(errno));
    }
    if (listen_to(caller)) return {};
    callers_.push_back(std::move(caller));
    // A member sends immediately, so the caller that has been silent longest is a stranger.
    if (callers_.size() > kMostCallers) {
      callers_.erase(callers_.begin());
      ++turned_away_;
    }
    return {};
  }

  /// Whether the caller is dealt with: admitted or rejected.
  bool listen_to(Caller& caller) {
    const bool was_answered = caller.index > 0;
    const auto heard =
        hear(caller.connection, was_answered ? sizeof(posix::Proof) : kGreetingBytes, caller.said);
    if (!heard) return false;
    if (*heard && !was_answered && answer(caller)) return listen_to(caller);
    if (*heard && was_answered && is_proven(caller)) {
      if (say(caller.connection, std::string(kWelcome)))
        connection(caller.index) = std::move(caller.connection);
      return true;
    }
    ++turned_away_;
    return true;
  }

  /// False if it cannot be a member after this one.
  bool answer(Caller& caller) const {
    for (int peer = self_ + 1; peer < size(); ++peer) {
      if (!caller.said.starts_with(announcement_of(peer))) continue;
      const std::string number = text_of(posix::random_nonce());
      caller.index = peer;
      caller.numbers = caller.said.substr(kGreetingBytes - sizeof(posix::Nonce)) + number;
      caller.said.clear();
      const Acquaintance& acquaintance = acquaintances_[peer];
      return say(caller.connection, number + acquaintance.proof("host", peer, self_, caller.numbers));
    }
    return false;
  }

  bool is_proven(const Caller& caller) const {
    const Acquaintance& acquaintance = acquaintances_[caller.index];
    return !connections_[caller.index].is_open() &&
           acquaintance.is_proof(caller.said, "caller", caller.index, self_, caller.numbers);
  }

  std::vector<core::Rank> silent() const {
    std::vector<core::Rank> ranks;
    for (int peer = self_ + 1; peer < size(); ++peer) {
      if (!connections_[peer].is_open()) ranks.push_back(rank(peer));
    }
    return ranks;
  }

  tl::unexpected<core::Error> late(std::vector<core::Rank> silent_ranks) const {
    if (auto over = failure_.look()) return tl::unexpected(*std::move(over));
    std::string names;
    for (const auto each : silent_ranks)
      names += fmt::format("{}rank {}", names.empty() ? "" : ", ", each.value);
    std::string strangers;
    if (turned_away_ > 0) {
      strangers = fmt::format("; {} connections of strangers were turned away", turned_away_);
    }
    const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(group_.deadline).count();
    return tl::unexpected(
        core::Error{Errc::timeout,
                    fmt::format("group '{}': the set-up did not end within {} ms: no sign of {}{}",
                                group_.name, limit, names, strangers),
                    std::move(silent_ranks)});
  }

  static constexpr std::size_t kMostCallers = 64;
  static constexpr int kLookAroundMilliseconds = 50;

  const GroupOptions& group_;
  JobFailure& failure_;
  const int self_;
  const Descriptor door_;
  const std::vector<Doorplate> doorplates_;
  core::List<int, Acquaintance> acquaintances_;  ///< with each member
  std::vector<Descriptor> connections_;
  std::vector<Caller> callers_;  // oldest first
  int turned_away_ = 0;
};

}  // namespace

Result<std::vector<Introduced>> introduce(const GroupOptions& group, const SocketAddress& own,
                                          const std::optional<posix::JobToken>& key, Rendezvous& rendezvous) {
  const auto give_up = Clock::now() + group.deadline;
  const int self = TRY(index_of_self(group));
  auto [door, doorplate] = TRY(open_door(own, key.has_value()));
  const auto key_of = [&](core::Rank rank) {
    return fmt::format("{}/{}/{}/tcp/{}", group.job, group.epoch.value, group.name, rank.value);
  };
  TRY(rendezvous.set(key_of(group.self), doorplate.text()));
  std::vector<Doorplate> doorplates;
  for (const core::Rank rank : group.members) {
    std::istringstream text(
        TRY(rendezvous.get(key_of(rank), std::max<std::chrono::nanoseconds>(give_up - Clock::now(), {}))));
    Doorplate plate;
    text >> plate.secret >> plate.host >> plate.port >> plate.proof;
    if (!text || plate.secret.size() != kSecretBytes) {
      return core::fail(Errc::mismatch,
                        "group '{}': what rank {} announced does not read as an address; do all ranks run "
                        "the same build?",
                        group.name, rank.value);
    }
    if (plate.proof != doorplate.proof) {
      return core::fail(Errc::mismatch,
                        "group '{}': rank {} has {} job token and rank {} has {}; give all ranks the same "
                        "TROUPE_JOB_TOKEN, or none",
                        group.name, group.self.value, key ? "a" : "no", rank.value, key ? "none" : "one");
    }
    doorplates.push_back(std::move(plate));
  }
  JobFailure failure(rendezvous, key_of(group.self));
  return Introduction(group, failure, self, std::move(door), std::move(doorplates),
                      key.value_or(posix::JobToken{}))
      .run(give_up);
}

}  // namespace troupe::gpu
