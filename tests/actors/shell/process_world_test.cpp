#include "actors/shell/process_rank.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <vector>

#include "actors/session/session.hpp"
#include "actors/world/transport/tcp.hpp"
#include "core/errors.hpp"
#include "messages/border.hpp"
#include "tests/actors/world/transport/pair.hpp"
#include "tests/support/rendezvous_memory.hpp"

namespace troupe::actors {
namespace {

TEST(ProcessWorld, RanksOfOneHostMeetOverUnreachableTcp) {
  ProcessWorldOptions options;
  options.collectives = "tcp";
  options.environment = [] {
    JobEnvironment environment;
    environment.world = core::WorldSize{2};
    environment.local_world = 2;
    // An address of a network for documentation: what leads there is not this host's loopback interface.
    environment.control_host = "192.0.2.1";
    environment.control_port = 9;
    environment.token = std::string(64, '0');
    return core::Result<JobEnvironment>(environment);
  };
  const auto world = ProcessRank::create(options);
  ASSERT_TRUE(world.has_value()) << world.error().message;
  gpu::MemoryRendezvous rendezvous;
  const auto backend = (*world)->collectives(rendezvous);
  ASSERT_TRUE(backend.has_value()) << backend.error().message;

  const auto group = (*backend)->create_group({.job = "job",
                                               .epoch = {1},
                                               .name = "dp",
                                               .members = {{0}, {1}},
                                               .self = {0},
                                               .deadline = std::chrono::milliseconds(1)});

  EXPECT_FALSE(group.has_value()) << "the other did not come";
  const auto doorplate = rendezvous.get("job/1/dp/tcp/0", {});
  ASSERT_TRUE(doorplate.has_value());
  EXPECT_THAT(*doorplate, ::testing::HasSubstr(" 127.0.0.1 "));
}

TEST(ProcessWorld, HasOneSession) {
  const auto world = ProcessRank::create({}).value();
  const auto join = [&] { return Session::join(*world, {}, {{"weight", {4}}}); };
  auto first = join();
  ASSERT_TRUE(first.has_value()) << first.error().message;

  const auto second = join();
  EXPECT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, core::Errc::invalid_argument);
  // It has not disturbed the one that was there.
  ASSERT_TRUE((*first)->publish_all());
  ASSERT_TRUE((*first)->leave());
  first->reset();

  const auto third = join();
  EXPECT_FALSE(third.has_value());
  EXPECT_EQ(third.error().message,
            "this world has, or had, a session or an attempt to join; make another one");
}

TEST(ProcessWorld, HasAnotherSessionInTheNextEpoch) {
  const core::Error lost{core::Errc::peer_lost, "rank 1 was lost"};
  ProcessWorldOptions options;
  bool goes_on = true;
  options.environment = [] { return core::Result<JobEnvironment>(JobEnvironment{}); };
  options.next_environment = [&](const JobEnvironment& over) -> core::Result<JobEnvironment> {
    if (!goes_on) return core::fail(core::Errc::unavailable, "the job ends");
    JobEnvironment next = over;
    next.epoch.value += 1;
    return next;
  };
  const auto world = ProcessRank::create(std::move(options)).value();
  const auto join = [&] { return Session::join(*world, {}, {{"weight", {4}}}); };
  auto session = join();
  ASSERT_TRUE(session.has_value()) << session.error().message;
  EXPECT_EQ(world->form_anew(lost).error().code, core::Errc::invalid_argument) << "the session is open";
  session->reset();

  const core::Error own{core::Errc::io, "the disk is full"};
  EXPECT_EQ(world->form_anew(own).error(), own) << "it says nothing about another rank";
  EXPECT_FALSE(join().has_value());
  for (std::uint64_t epoch = 2; epoch < 5; ++epoch) {
    ASSERT_TRUE(world->form_anew(lost));
    EXPECT_EQ(world->epoch().value, epoch);
    auto next = join();
    ASSERT_TRUE(next.has_value()) << next.error().message;
    ASSERT_TRUE((*next)->leave());
  }
  goes_on = false;

  EXPECT_EQ(world->form_anew(lost).error(), lost);
  EXPECT_EQ(world->epoch().value, 4u);
  EXPECT_FALSE(join().has_value());
}

TEST(ProcessWorld, IsUsedUpByAFailedAttemptToJoin) {
  const auto world = ProcessRank::create({}).value();
  EXPECT_FALSE(Session::join(*world, {}, {{"__metadata__", {4}}}).has_value());

  const auto second = Session::join(*world, {}, {{"weight", {4}}});

  ASSERT_FALSE(second.has_value());
  EXPECT_THAT(second.error().message, ::testing::HasSubstr("make another one"));
}

TEST(ProcessWorld, WhatIsSaidAroundTheNetworksOpeningArrives) {
  ProcessWorldOptions options;
  options.environment = [] {
    JobEnvironment environment;
    environment.world = core::WorldSize{2};
    environment.job = "early";
    environment.epoch = {6};
    environment.token = to_hex(token_of(7));
    return environment;
  };
  std::unique_ptr<ProcessRank> world;
  auto say = [&world](std::string what) {
    const messages::Address from{{0}, messages::Role::coordinator, 0};
    const messages::Address to{{1}, messages::Role::rank_supervisor, 0};
    world->post({from, to, {6}, messages::Fence{{0}, {.message = std::move(what)}}});
  };
  std::uint16_t port = 0;
  options.log = [&](std::string_view line) {
    // From the middle of start().
    const auto at = line.find(" port ");
    ASSERT_NE(at, line.npos) << line;
    port = static_cast<std::uint16_t>(std::stoi(std::string(line.substr(at + 6))));
    say("while");
  };
  world = *ProcessRank::create(std::move(options));
  ASSERT_TRUE(world->open({}));

  say("before");
  ASSERT_TRUE(world->start());
  say("after");

  std::vector<std::string> heard;
  std::promise<void> last;
  auto note = [&](const NetworkEvent& event) {
    const auto* arrived = std::get_if<MessageArrived>(&event);
    if (!arrived) return;
    const auto envelope = messages::incoming({.peer = {0}, .self = {1}}, arrived->message);
    ASSERT_TRUE(envelope) << envelope.error().message;
    heard.push_back(std::get<messages::Fence>(envelope->body).failure.message);
    if (heard.back() == "after") last.set_value();
  };
  auto peer = TcpNetwork::open(
      {.router = {.job = "early.6", .self = {1}, .world = {2}, .token = token_of(7)}, .port = port}, note);
  ASSERT_TRUE(peer) << peer.error().message;
  EXPECT_EQ(last.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  peer->reset();
  EXPECT_THAT(heard, ::testing::ElementsAre("before", "while", "after"));
}

}  // namespace
}  // namespace troupe::actors
