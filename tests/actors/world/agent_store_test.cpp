// A store of torchrun's agent as its bytes are known; tests/engines runs the real one.
#include "actors/world/agent_store.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <asio/buffer.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "actors/world/meeting_point.hpp"
#include "posix/entropy.hpp"
#include "tests/actors/world/heard_log.hpp"

namespace troupe::actors {
namespace {

using asio::ip::tcp;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using Steady = std::chrono::steady_clock;

enum class Manner { store, silent, hangs_up, web_server };

/// Listens on the loopback interface, and serves one caller after another.
class FakeAgent {
 public:
  explicit FakeAgent(Manner manner)
      : manner_(manner), thread_([this] {
          accept();
          loop_.run();
        }) {}
  ~FakeAgent() {
    loop_.stop();
    thread_.join();
  }

  std::uint16_t port() const { return port_; }

 private:
  struct Caller {
    explicit Caller(tcp::socket connected) : socket(std::move(connected)) {}
    tcp::socket socket;
    std::string said;
    std::array<char, 512> chunk{};
  };

  void accept() {
    acceptor_.async_accept([this](std::error_code error, tcp::socket socket) {
      if (error) return;
      auto caller = std::make_shared<Caller>(std::move(socket));
      if (manner_ != Manner::hangs_up) listen(caller);
      accept();
    });
  }

  void listen(const std::shared_ptr<Caller>& caller) {
    caller->socket.async_read_some(
        asio::buffer(caller->chunk), [this, caller](std::error_code error, std::size_t bytes) {
          if (error) return;
          caller->said.append(caller->chunk.data(), bytes);
          std::error_code ignored;
          if (manner_ == Manner::web_server)
            asio::write(caller->socket, asio::buffer(std::string("HTTP/1.1 400 Bad Request\r\n")), ignored);
          if (manner_ == Manner::store) answer(*caller);
          listen(caller);
        });
  }

  static std::uint64_t take_number(std::string& from, std::size_t bytes) {
    std::uint64_t number = 0;
    for (std::size_t i = 0; i < bytes; ++i)
      number |= std::uint64_t{static_cast<std::uint8_t>(from.at(i))} << (8 * i);
    from.erase(0, bytes);
    return number;
  }
  static std::string take_text(std::string& from) {
    const auto bytes = take_number(from, 8);
    std::string text = from.substr(0, bytes);
    from.erase(0, bytes);
    return text;
  }
  static std::string number(std::uint64_t value, std::size_t bytes) {
    std::string text;
    for (std::size_t i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
    return text;
  }

  /// Requests are short enough to arrive whole.
  void answer(Caller& caller) {
    std::string reply;
    while (!caller.said.empty()) {
      const auto kind = take_number(caller.said, 1);
      if (kind == 0) {
        EXPECT_EQ(take_number(caller.said, 4), 0x3C85F7CEU);
      } else if (kind == 13) {
        reply += number(take_number(caller.said, 4), 4);
      } else if (kind == 1) {
        const auto key = take_text(caller.said);
        values_[key] = take_text(caller.said);
      } else if (kind == 5) {
        EXPECT_EQ(take_number(caller.said, 8), 1U);
        reply += values_.contains(take_text(caller.said)) ? '\0' : '\1';
      } else if (kind == 3) {
        const auto& value = values_.at(take_text(caller.said));
        reply += number(value.size(), 8) + value;
      } else {
        ADD_FAILURE() << "a request of kind " << kind;
      }
    }
    std::error_code ignored;
    asio::write(caller.socket, asio::buffer(reply), ignored);
  }

  const Manner manner_;
  asio::io_context loop_{1};
  tcp::acceptor acceptor_{loop_, tcp::endpoint(asio::ip::address_v4::loopback(), 0)};
  const std::uint16_t port_ = acceptor_.local_endpoint().port();
  std::map<std::string, std::string> values_;  // only of the thread
  std::thread thread_;
};

AgentStore::Time within(milliseconds patience) {
  return Steady::now() + patience;
}

TEST(AgentStore, KeepsWhatIsSet) {
  FakeAgent agent(Manner::store);
  auto one = AgentStore::connect("127.0.0.1", agent.port(), within(seconds(20)));
  auto other = AgentStore::connect("localhost", agent.port(), within(seconds(20)));
  ASSERT_TRUE(one && other);

  const auto before = other->find_key("/troupe/a/0", within(seconds(20)));
  ASSERT_TRUE(one->set("/troupe/a/0", "[::1]:4711", within(seconds(20))));
  auto after = other->find_key("/troupe/a/0", within(seconds(20)));
  for (int i = 0; i < 1000 && after && !*after; ++i)
    after = other->find_key("/troupe/a/0", within(seconds(20)));

  ASSERT_TRUE(before && after);
  EXPECT_EQ(*before, std::nullopt);
  EXPECT_EQ(*after, "[::1]:4711");
  EXPECT_EQ(one->own_address(), "127.0.0.1");
  EXPECT_EQ(one->address(), "127.0.0.1");
}

TEST(AgentStore, SaysThatWhoAnswersIsNone) {
  FakeAgent silent(Manner::silent);
  FakeAgent hangs_up(Manner::hangs_up);
  FakeAgent web(Manner::web_server);

  const auto of_silent = AgentStore::connect("127.0.0.1", silent.port(), within(milliseconds(200)));
  const auto of_one_that_hangs_up = AgentStore::connect("127.0.0.1", hangs_up.port(), within(seconds(20)));
  const auto of_web = AgentStore::connect("127.0.0.1", web.port(), within(seconds(20)));

  ASSERT_FALSE(of_silent || of_one_that_hangs_up || of_web);
  EXPECT_EQ(of_silent.error().code, core::Errc::timeout);
  EXPECT_THAT(of_silent.error().message, HasSubstr("says nothing"));
  EXPECT_EQ(of_one_that_hangs_up.error().code, core::Errc::mismatch);
  EXPECT_THAT(of_one_that_hangs_up.error().message, HasSubstr("hangs up"));
  EXPECT_EQ(of_web.error().code, core::Errc::mismatch);
  EXPECT_THAT(of_web.error().message, HasSubstr("answers \"HTTP\""));
}

TEST(AgentStore, NamesAnAgentThatIsNotThere) {
  std::uint16_t port = 0;
  {
    FakeAgent gone(Manner::silent);
    port = gone.port();
  }

  const auto nobody = AgentStore::connect("127.0.0.1", port, within(seconds(20)));
  const auto nowhere = AgentStore::connect("no such host", port, within(seconds(20)));

  ASSERT_FALSE(nobody || nowhere);
  EXPECT_THAT(nobody.error().message, HasSubstr("127.0.0.1:" + std::to_string(port)));
  EXPECT_THAT(nowhere.error().message, HasSubstr("no such host"));
}

JobEnvironment torchrun(int rank, int local_world, std::uint16_t port, const std::string& run) {
  JobEnvironment environment;
  environment.rank = {rank};
  environment.world = {2};
  environment.local_world = local_world;
  environment.job = run;
  environment.control_port = port;
  return environment;
}

struct Meeting {
  const char* name;
  Manner manner;
  int local_world;
  bool finds;

  friend std::ostream& operator<<(std::ostream& out, const Meeting& of) { return out << of.name; }
};

class RanksOfTorchrun : public ::testing::TestWithParam<Meeting> {};

TEST_P(RanksOfTorchrun, FindRank0WhereItListens) {
  FakeAgent agent(GetParam().manner);
  const auto run = "meeting-" + posix::unique_name();
  const HeardLog log;
  MeetingPoint first(torchrun(0, GetParam().local_world, agent.port(), run), "/troupe/" + run,
                     log.of(Subsystem::transport));
  MeetingPoint second(torchrun(1, GetParam().local_world, agent.port(), run), "/troupe/" + run, {});

  const auto host = first.host_to_listen_at();
  const auto told = host ? first.announce(4711) : core::Result<void>(tl::unexpected(host.error()));
  const auto found = second.find(seconds(20));

  EXPECT_EQ(told.has_value(), GetParam().finds);
  ASSERT_EQ(found.has_value(), GetParam().finds) << (found ? "found" : found.error().message);
  if (!found) {
    EXPECT_THAT(found.error().message, HasSubstr("the store of torchrun's agent is expected at"));
    return;
  }
  EXPECT_EQ(*found, (Endpoint{"127.0.0.1", 4711}));
  EXPECT_EQ(log.count(), GetParam().manner == Manner::store ? 0U : 1U);
}

INSTANTIATE_TEST_SUITE_P(
    Agents, RanksOfTorchrun,
    ::testing::Values(Meeting{"OneHost", Manner::store, 2, true}, Meeting{"TwoHosts", Manner::store, 1, true},
                      Meeting{"OneHostWithASilentAgent", Manner::silent, 2, true},
                      Meeting{"OneHostWithAnotherServer", Manner::web_server, 2, true},
                      Meeting{"TwoHostsWithAnotherServer", Manner::web_server, 1, false}),
    testing::PrintToStringParamName());

TEST(MeetingPoint, NamesARank0ThatDoesNotCome) {
  FakeAgent agent(Manner::store);
  MeetingPoint second(torchrun(1, 1, agent.port(), "alone"), "/troupe/alone/0", {});

  const auto found = second.find(milliseconds(100));

  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, core::Errc::timeout);
  EXPECT_THAT(found.error().message, HasSubstr("/troupe/alone/0"));
}

}  // namespace
}  // namespace troupe::actors
