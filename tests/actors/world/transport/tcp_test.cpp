#include "actors/world/transport/tcp.hpp"

#include <fmt/format.h>

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <asio/connect.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>
#include <deque>
#include <future>

#include "tests/actors/world/heard_log.hpp"
#include "tests/actors/world/network_job.hpp"

namespace troupe::actors {
namespace {

using namespace std::chrono_literals;
using asio::ip::tcp;
using core::Errc;
using ::testing::HasSubstr;
using ::testing::Not;

/// Another program that reaches the port.
class Stranger {
 public:
  static constexpr int kDescriptors = 4;  ///< the socket's, and those of its context

  explicit Stranger(std::uint16_t port) { socket_.connect({asio::ip::address_v4::loopback(), port}); }

  void write(std::span<const std::byte> bytes) {
    asio::write(socket_, asio::buffer(bytes.data(), bytes.size()));
  }
  /// What comes until the other side closes.
  std::string read_all() {
    std::string text;
    std::error_code error;
    asio::read(socket_, asio::dynamic_buffer(text), error);
    return text;
  }
  /// Goes through the handshake as `rank` would.
  void join(int rank) {
    TransportOptions options = options_of(TransportOptions::Side::initiator);
    options.self = {rank};
    TransportMachine machine(options, 0ns);
    std::array<std::byte, 4096> input;
    while (!machine.is_joined()) {
      write(machine.take_output(SIZE_MAX));
      machine.receive(std::span(input).first(socket_.read_some(asio::buffer(input))), 0ns);
    }
  }

 private:
  asio::io_context io_;
  tcp::socket socket_{io_};
};

int open_descriptors() {
  int count = 0;
  DIR* directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

TEST(TcpNetwork, RefusesARankWithTheWrongToken) {
  TcpJob job(2);
  job.open(0);
  auto options = job.options(1);
  options.router.token = token_of(8);

  auto network = TcpNetwork::open(options, [](NetworkEvent) {});

  ASSERT_FALSE(network);
  EXPECT_EQ(network.error().code, Errc::mismatch);
  EXPECT_THAT(network.error().message, HasSubstr("TROUPE_JOB_TOKEN"));
  EXPECT_TRUE(job.heard(0).empty());
}

TEST(TcpNetwork, RefusesARankOfAnotherJob) {
  TcpJob job(2);
  job.open(0);
  auto options = job.options(1);
  options.router.job = "another";

  auto network = TcpNetwork::open(options, [](NetworkEvent) {});

  ASSERT_FALSE(network);
  EXPECT_THAT(network.error().message, HasSubstr("and two jobs two ports"));
}

TEST(TcpNetwork, RefusesASecondProcessOfARank) {
  TcpJob job(2);
  job.open_all();

  auto second = TcpNetwork::open(job.options(1), [](NetworkEvent) {});

  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message, HasSubstr("two processes have the same RANK"));
  ASSERT_TRUE(job.send(1, 0, "unharmed"));
  EXPECT_TRUE(job.hears(0, "1: unharmed"));
}

TEST(TcpNetwork, RefusesARankOutsideTheWorld) {
  TcpJob job(2);
  job.open(0);
  auto options = job.options(1);
  options.router.world = {5};
  options.router.self = {4};

  auto network = TcpNetwork::open(options, [](NetworkEvent) {});

  ASSERT_FALSE(network);
  EXPECT_THAT(network.error().message, HasSubstr("found rank 4; check RANK"));
}

TEST(TcpNetwork, RefusesGarbageAndGoesOn) {
  TcpJob job(2);
  job.open(0);

  Stranger browser(job.port);
  browser.write(bytes_of("GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_THAT(browser.read_all(), HasSubstr("expected a handshake of Troupe, found \"GET / HTTP/1.1"));
  Stranger hurried(job.port);
  hurried.write(std::vector<std::byte>(100000, std::byte{0xff}));
  hurried.read_all();

  job.open(1);
  EXPECT_TRUE(job.hears(0, "joined 1"));
}

TEST(TcpNetwork, TenThousandSilentConnectionsKeepNoRankOut) {
  constexpr std::size_t kStay = 100;
  TcpJob job(2);
  job.open(0);
  const int before = open_descriptors();
  std::deque<Stranger> strangers;
  for (int i = 0; i < 10'000; ++i) {
    strangers.emplace_back(job.port);
    if (strangers.size() > kStay) strangers.pop_front();
  }
  const int of_hub = open_descriptors() - before - static_cast<int>(kStay) * Stranger::kDescriptors;

  job.open(1);

  EXPECT_LE(of_hub, 2 * 2 + 16 + 1) << "each rank twice, and some more";
  EXPECT_TRUE(job.hears(0, "joined 1"));
}

TEST(TcpNetwork, AnOversizedFrameOfARankIsItsLoss) {
  TcpJob job(3);
  job.open(0);
  Stranger rank(job.port);
  rank.join(1);
  std::vector<std::byte> header;
  ByteWriter(header).number(std::uint32_t{2'000'000}).number(std::uint8_t{6});

  rank.write(header);

  EXPECT_TRUE(job.hears(0, "lost 1 corrupt"));
}

TEST(TcpNetwork, NonReadingReaderIsBoundedAndThenLost) {
  TcpJob job(2);
  job.open(0);
  Stranger rank(job.port);
  rank.join(1);
  ASSERT_TRUE(job.hears(0, "joined 1"));
  std::string message(64 << 10, 'x');

  std::size_t taken = 0;
  core::Result<void> sent;
  while (taken < (std::size_t{1} << 30) && (sent = job.send(0, 1, message))) taken += message.size();

  ASSERT_FALSE(sent);
  EXPECT_LT(taken, std::size_t{64} << 20) << "8 MiB of ours and the kernel's own buffers";
  EXPECT_TRUE(job.hears(0, "lost 1 timeout"));
}

TEST(TcpNetwork, WaitsForAHubThatStartsLater) {
  TcpJob job(2);
  asio::io_context io;
  auto placeholder = std::make_unique<tcp::acceptor>(io, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
  auto hub = job.options(0);
  hub.port = placeholder->local_endpoint().port();
  placeholder.reset();
  auto spoke = job.options(1);
  spoke.port = hub.port;

  auto reached = std::async(std::launch::async, [&] { return TcpNetwork::open(spoke, [](NetworkEvent) {}); });
  ASSERT_EQ(reached.wait_for(50ms), std::future_status::timeout);
  auto network = TcpNetwork::open(hub, [](NetworkEvent) {});

  ASSERT_TRUE(network) << network.error().message;
  EXPECT_TRUE(reached.get());
}

/// The listener of an epoch does this if it ends while a rank of the next one comes.
TEST(TcpNetwork, ComesAgainWhenAListenerClosesWithoutAnAnswer) {
  TcpJob job(2);
  asio::io_context io;
  auto before = std::make_unique<tcp::acceptor>(io, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
  auto hub = job.options(0);
  hub.port = before->local_endpoint().port();
  auto spoke = job.options(1);
  spoke.port = hub.port;

  auto reached = std::async(std::launch::async, [&] { return TcpNetwork::open(spoke, [](NetworkEvent) {}); });
  before->accept().close();
  before.reset();
  auto network = TcpNetwork::open(hub, [](NetworkEvent) {});

  ASSERT_TRUE(network) << network.error().message;
  const auto result = reached.get();
  EXPECT_TRUE(result) << result.error().message;
}

TEST(TcpNetwork, ListensToNobodyOnceCompleteAndOneHasLeft) {
  TcpJob job(2);
  asio::io_context io;
  auto hub = TcpNetwork::open(job.options(0), [](NetworkEvent) {});
  ASSERT_TRUE(hub);
  auto options = job.options(1);
  options.port = (*hub)->port();
  const auto connects = [&] {
    tcp::socket socket(io);
    std::error_code error;
    socket.connect(tcp::endpoint(asio::ip::address_v4::loopback(), options.port), error);
    return !error;
  };
  auto spoke = TcpNetwork::open(options, [](NetworkEvent) {});
  ASSERT_TRUE(spoke);
  EXPECT_TRUE(connects());

  ASSERT_TRUE((*spoke)->close());

  EXPECT_FALSE(connects());
}

TEST(TcpNetwork, MeetsAtAName) {
  TcpJob job(2);
  auto hub = job.options(0);
  hub.address = "localhost";
  const HeardLog log;
  hub.log = log.of(Subsystem::transport);

  auto network = TcpNetwork::open(hub, [](NetworkEvent) {});
  ASSERT_TRUE(network) << network.error().message;
  auto spoke = job.options(1);
  spoke.address = "localhost";
  spoke.port = (*network)->port();
  auto reached = TcpNetwork::open(spoke, [](NetworkEvent) {});

  EXPECT_TRUE(reached) << reached.error().message;
  EXPECT_THAT(log.text(), HasSubstr("listens at localhost port"));
  EXPECT_THAT(log.text(), Not(HasSubstr("which other hosts can reach")));
}

TEST(TcpNetwork, ReportsThatNobodyKnowsItsListeningName) {
  TcpJob job(1);
  auto options = job.options(0);
  options.address = "no-such-host.invalid";

  auto network = TcpNetwork::open(options, [](NetworkEvent) {});

  ASSERT_FALSE(network);
  EXPECT_EQ(network.error().code, Errc::invalid_argument);
  EXPECT_THAT(network.error().message, HasSubstr("no-such-host.invalid"));
  EXPECT_THAT(network.error().message, HasSubstr("MASTER_ADDR"));
}

TEST(TcpNetwork, GivesUpAtTheDeadlineWhenNobodyListens) {
  TcpJob job(2);
  auto options = job.options(1);
  options.port = 1;
  options.connect_deadline = 100ms;

  auto network = TcpNetwork::open(options, [](NetworkEvent) {});

  ASSERT_FALSE(network);
  EXPECT_EQ(network.error().code, Errc::timeout);
  EXPECT_THAT(network.error().message, HasSubstr("rank 0 could not be reached at 127.0.0.1 port 1"));
}

TEST(TcpNetwork, SaysThatThePortIsInUse) {
  TcpJob job(1);
  job.open(0);
  auto options = job.options(0);
  options.port = job.port;

  auto network = TcpNetwork::open(options, [](NetworkEvent) {});

  ASSERT_FALSE(network);
  EXPECT_EQ(network.error().code, Errc::io);
  EXPECT_THAT(network.error().message, HasSubstr("choose another port"));
}

TEST(TcpNetwork, LogsWhatIsBound) {
  TcpJob job(1);
  auto options = job.options(0);
  const HeardLog log;
  options.log = log.of(Subsystem::transport);

  auto network = TcpNetwork::open(options, [](NetworkEvent) {});

  ASSERT_TRUE(network);
  EXPECT_EQ(log.text(), fmt::format("the control network listens at 127.0.0.1 port {}", (*network)->port()));
}

/// Rank 1 of a job in a process of its own, which does nothing but live. It is forked before this process has
/// threads, and so before there is a port.
class RankProcess {
 public:
  explicit RankProcess(TcpOptions options) {
    int ends[2];
    if (pipe(ends) != 0) abort();
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(ends[1]);
      bool is_told = ::read(ends[0], &options.port, sizeof options.port) == sizeof options.port;
      auto network = TcpNetwork::open(options, [](NetworkEvent) {});
      while (is_told && network) pause();
      _exit(1);
    }
    close(ends[0]);
    port_pipe_ = ends[1];
  }
  ~RankProcess() {
    close(port_pipe_);
    signal(SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  void connect(std::uint16_t port) { ASSERT_EQ(::write(port_pipe_, &port, sizeof port), sizeof port); }
  void signal(int number) { kill(pid_, number); }

 private:
  pid_t pid_ = 0;
  int port_pipe_ = -1;
};

TEST(TcpNetwork, SeesThatAProcessWasKilled) {
  TcpJob job(2);
  RankProcess rank(job.options(1));
  job.open(0);
  rank.connect(job.port);
  ASSERT_TRUE(job.hears(0, "joined 1"));

  rank.signal(SIGKILL);

  EXPECT_TRUE(job.hears(0, "lost 1 peer_lost"));
}

TEST(TcpNetwork, SeesThatAProcessWasStopped) {
  TcpJob job(2);
  RankProcess rank(job.options(1));
  job.open(0);
  rank.connect(job.port);
  ASSERT_TRUE(job.hears(0, "joined 1"));

  rank.signal(SIGSTOP);

  EXPECT_TRUE(job.hears(0, "lost 1 timeout"));
}

TEST(TcpNetwork, LeavesNoDescriptorBehind) {
  { TcpJob(1).open_all(); }
  int before = open_descriptors();

  for (int i = 0; i < 20; ++i) {
    TcpJob job(3);
    job.open_all();
    ASSERT_TRUE(job.send(1, 2, "x"));
    ASSERT_TRUE(job.hears(2, "1: x"));
    if (i % 2 == 0) {
      ASSERT_TRUE(job.networks[1]->close());
    }
  }

  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace troupe::actors
