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
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "gpu/collective/gloo/gloo_backend.hpp"
#include "gpu/host/host_device.hpp"
#include "posix/descriptor.hpp"
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

GroupOptions options_of(int self, int size) {
  GroupOptions options{
      .job = "strangers", .epoch = {1}, .name = "dp", .members = {}, .self = {self}, .deadline = 10s};
  for (int i = 0; i < size; ++i) options.members.push_back({i});
  return options;
}

/// The sum of all members' numbers as this member gets it, 1 + 2 + ...; or why not.
std::string sum_over(Rendezvous& rendezvous, int self, int size) {
  const auto device = open_host_device().value();
  const auto stream = device->create_stream({.name = "test"}).value();
  const auto backend = GlooBackend::open(rendezvous, {}).value();
  const auto group = backend->create_group(options_of(self, size));
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

class GlooStranger : public ::testing::TestWithParam<Stranger> {};

TEST_P(GlooStranger, AtEveryPortBeforeAnybodyElseDoNotHinderAGroup) {
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
    Kinds, GlooStranger,
    ::testing::Values(Stranger{.name = "WhoSayNothing", .says = ""},
                      Stranger{.name = "WhoSayNothingAndLeave", .says = "", .stays = false},
                      Stranger{.name = "WhoTalk", .says = std::string(100, 'x')},
                      Stranger{.name = "WhoTalkAndLeave", .says = std::string(100, 'x'), .stays = false},
                      Stranger{.name = "WhoKnowTheWordsButNotTheSecret",
                               .says = std::string(32, '0') + "00000001"},
                      Stranger{.name = "WhoComeInNumbers", .says = "", .connections = 100}),
    [](const auto& kind) { return kind.param.name; });

TEST(GlooStrangers, WhoNeverTireDoNotHinderAGroupEither) {
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

TEST(GlooSetUp, LeavesNoPortOpenBehind) {
  const auto before = listening_ports();
  MemoryRendezvous rendezvous;
  const auto member = [&](int self) {
    const auto backend = GlooBackend::open(rendezvous, {}).value();
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

TEST(GlooSetUp, ThatEndsAtItsDeadlineNamesWhoIsMissingAndHowManyWereNot) {
  // It knows what the missing member would say, but for the secret.
  Visits visits({.says = std::string(32, '0') + "00000001", .stays = false});
  WatchedRendezvous watched([&](const std::string&, const std::string&) { visits(); });
  // As a member leaves it that does not come.
  ASSERT_TRUE(watched.set("strangers/1/dp/gloo/1", std::string(32, '0') + " 127.0.0.1 1"));
  const auto backend = GlooBackend::open(watched, {}).value();
  auto options = options_of(0, 2);
  options.deadline = 50ms;

  const auto group = backend->create_group(options);

  ASSERT_FALSE(group.has_value());
  EXPECT_EQ(core::to_string(group.error().code), std::string("timeout"));
  EXPECT_EQ(group.error().message,
            "group 'dp': the set-up did not end within 50 ms: no sign of rank 1; 1 connections of strangers "
            "were turned away");
}

TEST(GlooSetUp, WithAMemberThatIsGoneEndsAtOnceAndSaysWhere) {
  MemoryRendezvous rendezvous;
  const auto backend = GlooBackend::open(rendezvous, {}).value();
  ASSERT_TRUE(rendezvous.set("strangers/1/dp/gloo/0", std::string(32, '0') + " 127.0.0.1 1"));

  const auto group = backend->create_group(options_of(1, 2));

  ASSERT_FALSE(group.has_value());
  EXPECT_EQ(core::to_string(group.error().code), std::string("peer_lost"));
  EXPECT_THAT(group.error().message,
              ::testing::HasSubstr("rank 1 found nobody at 127.0.0.1 port 1, where rank 0 listened "
                                   "(Connection refused)"));
}

TEST(GlooSetUp, ThatHasNoDescriptorLeftBlamesNoMember) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  // Once the member listens, it can open nothing more.
  WatchedRendezvous watched([&](const std::string& key, const std::string&) {
    if (key != "strangers/1/dp/gloo/1") return;
    const Descriptor lowest(dup(STDERR_FILENO));
    const rlimit full{static_cast<rlim_t>(lowest.get()), before.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &full), 0);
  });
  ASSERT_TRUE(watched.set("strangers/1/dp/gloo/0", std::string(32, '0') + " 127.0.0.1 1"));
  const auto backend = GlooBackend::open(watched, {}).value();

  const auto group = backend->create_group(options_of(1, 2));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);

  ASSERT_FALSE(group.has_value());
  EXPECT_EQ(core::to_string(group.error().code), std::string("io")) << group.error().message;
  EXPECT_THAT(group.error().message, ::testing::HasSubstr("ulimit -n"));
}

TEST(GlooSetUp, DoesNotTakeAnImpostorForAMember) {
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
    const std::string answer(32, 'x');
    EXPECT_EQ(send(caller.get(), answer.data(), answer.size(), MSG_NOSIGNAL), 32);
    char byte = 0;
    while (recv(caller.get(), &byte, 1, 0) > 0) {
    }
  });
  MemoryRendezvous rendezvous;
  const auto backend = GlooBackend::open(rendezvous, {}).value();
  ASSERT_TRUE(rendezvous.set("strangers/1/dp/gloo/0",
                             fmt::format("{} 127.0.0.1 {}", std::string(32, '0'), ntohs(address.sin_port))));

  const auto group = backend->create_group(options_of(1, 2));
  // Whatever happened, nobody else will call.
  shutdown(door.get(), SHUT_RDWR);

  ASSERT_FALSE(group.has_value());
  EXPECT_EQ(core::to_string(group.error().code), std::string("peer_lost"));
  EXPECT_THAT(group.error().message, ::testing::HasSubstr("is not rank 0"));
}

}  // namespace
}  // namespace troupe::gpu
