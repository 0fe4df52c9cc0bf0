// Others who reach the ports of a group while it is set up.
#include <fmt/format.h>

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "gpu/collective/tcp/tcp_backend.hpp"
#include "gpu/host/host_device.hpp"
#include "posix/descriptor.hpp"
#include "tests/gpu/at_once.hpp"
#include "tests/gpu/collective/watched_rendezvous.hpp"

namespace troupe::gpu {
namespace {

using posix::Descriptor;
using namespace std::chrono_literals;

/// The sockets of a process, as /proc names them.
std::set<std::string> sockets_of(pid_t process) {
  std::set<std::string> inodes;
  for (const auto& entry : std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", process))) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  return inodes;
}

/// The TCP ports on which a process listens, as every user of the machine can read them.
std::set<std::uint16_t> listening_ports(pid_t process = getpid()) {
  const auto own = sockets_of(process);
  std::set<std::uint16_t> ports;
  std::ifstream table("/proc/net/tcp");
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::array<std::string, 10> field;
    for (std::string& one : field) fields >> one;
    constexpr const char* kListens = "0A";
    if (field[3] != kListens || !own.contains(field[9])) continue;
    ports.insert(
        static_cast<std::uint16_t>(std::stoul(field[1].substr(field[1].find(':') + 1), nullptr, 16)));
  }
  return ports;
}

/// Connects and says something; the connection is invalid where nobody can connect.
Descriptor connect_and_say(std::uint16_t port, const std::string& text) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  Descriptor connection(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return {};
  EXPECT_EQ(send(connection.get(), text.data(), text.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(text.size()));
  return connection;
}

struct Stranger {
  std::string name;
  std::string says;
  bool stays = true;
  int connections = 1;

  friend std::ostream& operator<<(std::ostream& out, const Stranger& stranger) {
    return out << stranger.name;
  }
};

/// Visits every port on which a process listens.
class Visits {
 public:
  explicit Visits(Stranger stranger, pid_t host = getpid()) : stranger_(std::move(stranger)), host_(host) {}

  void operator()() {
    for (const std::uint16_t port : listening_ports(host_)) {
      for (int i = 0; i < stranger_.connections; ++i) {
        Descriptor connection = connect_and_say(port, stranger_.says);
        if (!connection.is_open()) break;
        ++count_;
        if (stranger_.stays) connections_.push_back(std::move(connection));
      }
    }
  }
  int count() const { return count_; }

 private:
  Stranger stranger_;
  pid_t host_;
  std::vector<Descriptor> connections_;
  int count_ = 0;
};

/// Visits this process without end, from a process of its own, until it goes.
class TirelessStranger {
 public:
  explicit TirelessStranger(const Stranger& stranger) : process_(fork()) {
    if (process_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Visits visits(stranger, getppid());
    while (true) visits();
  }
  TirelessStranger(const TirelessStranger&) = delete;
  TirelessStranger& operator=(const TirelessStranger&) = delete;
  ~TirelessStranger() {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }

 private:
  pid_t process_;
};

GroupOptions options_of(int self, int size, std::chrono::nanoseconds deadline = 10s) {
  GroupOptions options{
      .job = "strangers", .epoch = {1}, .name = "dp", .members = {}, .self = {self}, .deadline = deadline};
  for (int i = 0; i < size; ++i) options.members.push_back({i});
  return options;
}

/// The sum of all members' numbers as this member gets it, 1 + 2 + ...; or why not.
std::string sum_over(Rendezvous& rendezvous, int self, int size,
                     std::optional<posix::JobToken> key = std::nullopt,
                     std::chrono::nanoseconds deadline = 10s) {
  const auto device = open_host_device().value();
  const auto stream = device->create_stream({.name = "test"}).value();
  const auto backend = TcpBackend::open(rendezvous, {.key = key}).value();
  const auto group = backend->create_group(options_of(self, size, deadline));
  if (!group) return group.error().message;
  std::vector<float> values(1 << 16, static_cast<float>(self + 1));
  const BufferView view{reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(float)};
  const auto status = (*group)->post(
      {.kind = OperationKind::all_reduce, .input = view, .output = view, .deadline = 10s}, stream.get());
  if (!status) return status.error().message;
  if (!stream->synchronize(60s)) return "the stream did not empty";
  const auto result = (*status)->result();
  if (!result->has_value()) return result->error().message;
  return fmt::format("{} ... {}", values.front(), values.back());
}

/// What member 1 would say, with a number and a proof made up.
const std::string kWords = "TROUPE call 00000001" + std::string(64, '0');

class TcpStranger : public ::testing::TestWithParam<Stranger> {};

TEST_P(TcpStranger, AtEveryPortFirstDoesNotHinderAGroup) {
  constexpr int kSize = 3;
  std::mutex mutex;
  Visits visits(GetParam());
  WatchedRendezvous rendezvous([&](const std::string&, const std::string&) {
    std::lock_guard lock(mutex);
    visits();
  });
  std::array<std::string, kSize> sums;
  {
    std::vector<std::jthread> members;
    for (int i = 0; i < kSize; ++i) {
      members.emplace_back([&, i] { sums[static_cast<std::size_t>(i)] = sum_over(rendezvous, i, kSize); });
    }
  }

  EXPECT_GE(visits.count(), kSize) << "every member listens";
  EXPECT_THAT(sums, ::testing::Each(std::string("6 ... 6")));
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, TcpStranger,
    ::testing::Values(Stranger{.name = "WhoSayNothing", .says = ""},
                      Stranger{.name = "WhoSayNothingAndLeave", .says = "", .stays = false},
                      Stranger{.name = "WhoTalk", .says = std::string(100, 'x')},
                      Stranger{.name = "WhoTalkAndLeave", .says = std::string(100, 'x'), .stays = false},
                      Stranger{.name = "WhoKnowTheWordsButNotTheSecret", .says = kWords},
                      Stranger{.name = "WhoKnowTheWordsAndLeave", .says = kWords, .stays = false},
                      Stranger{.name = "WhoComeInNumbers", .says = "", .connections = 100}),
    [](const auto& kind) { return kind.param.name; });

TEST(TcpStrangers, WhoNeverTireDoNotHinderAGroupEither) {
  constexpr int kSize = 3;
  const TirelessStranger stranger({.says = std::string(100, 'x'), .stays = false});

  for (int round = 0; round < 5; ++round) {
    MemoryRendezvous rendezvous;
    std::array<std::string, kSize> sums;
    {
      std::vector<std::jthread> members;
      for (int i = 0; i < kSize; ++i) {
        members.emplace_back([&, i] { sums[static_cast<std::size_t>(i)] = sum_over(rendezvous, i, kSize); });
      }
    }
    ASSERT_THAT(sums, ::testing::Each(std::string("6 ... 6"))) << "round " << round;
  }
}

posix::JobToken token_of(int number) {
  posix::JobToken token{};
  token.fill(static_cast<std::byte>(number));
  return token;
}

TEST(TcpSetUp, WithOneKeyBringsAllMembersTogether) {
  MemoryRendezvous rendezvous;
  std::array<std::string, 3> sums;
  at_once(3, [&](std::size_t i) { sums[i] = sum_over(rendezvous, static_cast<int>(i), 3, token_of(7)); });

  EXPECT_THAT(sums, ::testing::Each(std::string("6 ... 6")));
}

TEST(TcpSetUp, WithAnotherKeyIsRefusedDespiteTheSameRendezvous) {
  MemoryRendezvous rendezvous;
  std::array<std::string, 2> sums;
  at_once(2, [&](std::size_t i) {
    // A stranger who reads everything that members publish would come like this.
    sums[i] = sum_over(rendezvous, static_cast<int>(i), 2, token_of(static_cast<int>(i)), 1s);
  });

  EXPECT_THAT(sums[1], ::testing::HasSubstr("is not rank 0, which must be gone or has another job token"));
  EXPECT_THAT(sums[0],
              ::testing::HasSubstr("no sign of rank 1; 1 connections of strangers were turned away"));
}

TEST(TcpSetUp, WithAKeyOnSomeMembersOnlySaysSo) {
  MemoryRendezvous rendezvous;
  std::array<std::string, 2> sums;
  at_once(2, [&](std::size_t i) {
    sums[i] =
        sum_over(rendezvous, static_cast<int>(i), 2, i == 0 ? std::optional(token_of(7)) : std::nullopt);
  });

  EXPECT_THAT(sums[0],
              ::testing::HasSubstr("rank 0 has a job token and rank 1 has none; give all ranks the same"));
  EXPECT_THAT(sums[1], ::testing::HasSubstr("rank 1 has no job token and rank 0 has one"));
}

/// Everything that arrives until `bytes` are there or the other side closes.
std::string hear(const Descriptor& connection, std::size_t bytes) {
  std::string said(bytes, '\0');
  std::size_t count = 0;
  while (count < bytes) {
    const ssize_t more = recv(connection.get(), said.data() + count, bytes - count, 0);
    if (more <= 0) break;
    count += static_cast<std::size_t>(more);
  }
  said.resize(count);
  return said;
}

void say(const Descriptor& connection, const std::string& text) {
  EXPECT_EQ(send(connection.get(), text.data(), text.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(text.size()));
}

/// Stands between member 1 and member 0, as everybody on the way can: it reads what they say, and once keeps
/// the caller's proof to itself.
class Eavesdropper {
 public:
  Eavesdropper() : door_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const own = reinterpret_cast<sockaddr*>(&address);
    socklen_t bytes = sizeof address;
    EXPECT_EQ(bind(door_.get(), own, bytes), 0);
    EXPECT_EQ(listen(door_.get(), 8), 0);
    EXPECT_EQ(getsockname(door_.get(), own, &bytes), 0);
    port_ = ntohs(address.sin_port);
  }

  std::uint16_t port() const { return port_; }

  /// Takes down one introduction, of which the caller's proof does not arrive.
  void record(std::uint16_t host) {
    const Descriptor caller(accept4(door_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    greeting_ = hear(caller, kGreetingBytes);
    const Descriptor to_host = connect_and_say(host, greeting_);
    say(caller, hear(to_host, kAnswerBytes));
    proof_ = hear(caller, kProofBytes);
    // What the caller then says elsewhere is passed on untouched.
  }
  /// What the host answers to all that was recorded, beyond its own number and proof.
  std::string replay(std::uint16_t host) const {
    const Descriptor to_host = connect_and_say(host, greeting_);
    EXPECT_EQ(hear(to_host, kAnswerBytes).size(), kAnswerBytes);
    say(to_host, proof_);
    return hear(to_host, kWelcomeBytes);
  }
  /// Brings the caller and the host together, byte by byte, until both are gone.
  void pass_on(std::uint16_t host) const {
    const Descriptor caller(accept4(door_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const Descriptor to_host = connect_and_say(host, "");
    const auto pass = [](const Descriptor& from, const Descriptor& to) {
      std::array<char, 4096> buffer{};
      for (ssize_t count; (count = recv(from.get(), buffer.data(), buffer.size(), 0)) > 0;)
        send(to.get(), buffer.data(), static_cast<std::size_t>(count), MSG_NOSIGNAL);
      shutdown(to.get(), SHUT_WR);
    };
    const std::jthread back([&] { pass(to_host, caller); });
    pass(caller, to_host);
  }

 private:
  static constexpr std::size_t kGreetingBytes = 52;
  static constexpr std::size_t kAnswerBytes = 64;
  static constexpr std::size_t kProofBytes = 32;
  static constexpr std::size_t kWelcomeBytes = 8;

  Descriptor door_;
  std::uint16_t port_ = 0;
  std::string greeting_;
  std::string proof_;
};

/// Tells members that member 0 is at another port.
class BentRendezvous final : public Rendezvous {
 public:
  explicit BentRendezvous(std::uint16_t port) : port_(port) {}

  core::Result<void> set(const std::string& key, const std::string& value) override {
    if (!key.ends_with("/tcp/0")) return memory_.set(key, value);
    std::istringstream text(value);
    std::string secret, host, port, proof;
    text >> secret >> host >> port >> proof;
    real_port.set_value(static_cast<std::uint16_t>(std::stoul(port)));
    return memory_.set(key, fmt::format("{} {} {} {}", secret, host, port_, proof));
  }
  core::Result<std::string> get(const std::string& key, std::chrono::nanoseconds deadline) override {
    return memory_.get(key, deadline);
  }

  std::promise<std::uint16_t> real_port;

 private:
  const std::uint16_t port_;
  MemoryRendezvous memory_;
};

TEST(TcpStrangers, CannotReplayAnIntroductionNorHearASecret) {
  Eavesdropper eavesdropper;
  BentRendezvous rendezvous(eavesdropper.port());
  std::string answer = "none";
  std::jthread stranger([&] {
    const std::uint16_t host = rendezvous.real_port.get_future().get();
    eavesdropper.record(host);
    answer = eavesdropper.replay(host);
    eavesdropper.pass_on(host);
  });
  std::array<std::string, 2> sums;
  at_once(2, [&](std::size_t i) { sums[i] = sum_over(rendezvous, static_cast<int>(i), 2, token_of(7)); });
  stranger.join();

  EXPECT_EQ(answer, "") << "the host is not convinced, and says nothing";
  EXPECT_THAT(sums, ::testing::Each(std::string("3 ... 3"))) << "and waits for the member itself";
}

TEST(TcpSetUp, LeavesNoPortOpenBehind) {
  const auto before = listening_ports();
  MemoryRendezvous rendezvous;
  const auto member = [&](int self) {
    const auto backend = TcpBackend::open(rendezvous, {}).value();
    const auto group = backend->create_group(options_of(self, 2));
    ASSERT_TRUE(group.has_value()) << group.error().message;
    std::string key = fmt::format("there {}", self);
    ASSERT_TRUE(rendezvous.set(key, ""));
    ASSERT_TRUE(rendezvous.get(fmt::format("there {}", 1 - self), 10s));
    if (self == 0) {
      EXPECT_EQ(listening_ports(), before);
    }
    ASSERT_TRUE(rendezvous.set(key + " looked", ""));
    ASSERT_TRUE(rendezvous.get("there 0 looked", 10s));
  };
  std::jthread other(member, 1);
  member(0);
}

TEST(TcpSetUp, AtItsDeadlineNamesAndCountsWhoIsMissing) {
  // It knows what the missing member would say, but for the proof.
  Visits visits({.says = kWords, .stays = false});
  WatchedRendezvous watched([&](const std::string&, const std::string&) { visits(); });
  // A member that does not come leaves this behind.
  ASSERT_TRUE(watched.set("strangers/1/dp/tcp/1", std::string(32, '0') + " 127.0.0.1 1 none"));
  const auto backend = TcpBackend::open(watched, {}).value();
  auto options = options_of(0, 2);
  options.deadline = 50ms;

  const auto group = backend->create_group(options);

  ASSERT_FALSE(group.has_value());
  EXPECT_EQ(core::to_string(group.error().code), std::string("timeout"));
  EXPECT_EQ(group.error().message,
            "group 'dp': the set-up did not end within 50 ms: no sign of rank 1; 1 connections of strangers "
            "were turned away");
}

TEST(TcpSetUp, WithLostMembersEndsAtOnceSayingWhere) {
  MemoryRendezvous rendezvous;
  const auto backend = TcpBackend::open(rendezvous, {}).value();
  ASSERT_TRUE(rendezvous.set("strangers/1/dp/tcp/0", std::string(32, '0') + " 127.0.0.1 1 none"));

  const auto group = backend->create_group(options_of(1, 2));

  ASSERT_FALSE(group.has_value());
  EXPECT_EQ(core::to_string(group.error().code), std::string("peer_lost"));
  EXPECT_THAT(group.error().message,
              ::testing::HasSubstr("rank 1 found nobody at 127.0.0.1 port 1, where rank 0 listened "
                                   "(Connection refused)"));
}

TEST(TcpSetUp, ThatHasNoDescriptorLeftBlamesNoMember) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  // Once the member listens, it can open nothing more.
  WatchedRendezvous watched([&](const std::string& key, const std::string&) {
    if (key != "strangers/1/dp/tcp/1") return;
    const Descriptor lowest(dup(STDERR_FILENO));
    const rlimit full{static_cast<rlim_t>(lowest.get()), before.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &full), 0);
  });
  ASSERT_TRUE(watched.set("strangers/1/dp/tcp/0", std::string(32, '0') + " 127.0.0.1 1 none"));
  const auto backend = TcpBackend::open(watched, {}).value();

  const auto group = backend->create_group(options_of(1, 2));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);

  ASSERT_FALSE(group.has_value());
  EXPECT_EQ(core::to_string(group.error().code), std::string("io")) << group.error().message;
  EXPECT_THAT(group.error().message, ::testing::HasSubstr("ulimit -n"));
}

TEST(TcpSetUp, DoesNotTakeAnImpostorForAMember) {
  // Somebody else listens where rank 0 did, and answers whatever comes.
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const Descriptor door(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(door.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(door.get(), 1), 0);
  socklen_t bytes = sizeof address;
  ASSERT_EQ(getsockname(door.get(), reinterpret_cast<sockaddr*>(&address), &bytes), 0);
  std::jthread impostor([&] {
    const Descriptor caller(accept4(door.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::string answer(64, 'x');
    EXPECT_EQ(send(caller.get(), answer.data(), answer.size(), MSG_NOSIGNAL), 64);
    char byte = 0;
    while (recv(caller.get(), &byte, 1, 0) > 0) {
    }
  });
  MemoryRendezvous rendezvous;
  const auto backend = TcpBackend::open(rendezvous, {}).value();
  ASSERT_TRUE(rendezvous.set("strangers/1/dp/tcp/0", fmt::format("{} 127.0.0.1 {} none", std::string(32, '0'),
                                                                 ntohs(address.sin_port))));

  const auto group = backend->create_group(options_of(1, 2));
  // Whatever happened, nobody else will call.
  shutdown(door.get(), SHUT_RDWR);

  ASSERT_FALSE(group.has_value());
  EXPECT_EQ(core::to_string(group.error().code), std::string("peer_lost"));
  EXPECT_THAT(group.error().message, ::testing::HasSubstr("is not rank 0"));
}

}  // namespace
}  // namespace troupe::gpu
