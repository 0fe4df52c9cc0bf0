// Spares, and ranks that come and go, in simulated processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <vector>

#include "tests/actors/launch/simulated_node.hpp"

namespace troupe::actors {
namespace {

using node_tests::fails_after;
using node_tests::kTrains;
using node_tests::Node;
using std::chrono::seconds;

TEST(NodeAgentShell, GivesTheRankToASpareThenStartsAnother) {
  Node node({.ranks = 3, .max_restarts = 1, .in_place = true, .spares = 1}, [](int generation, int slot) {
    return generation == 0 && slot == 1 ? fails_after(seconds(5))
           : slot == 1 || slot == 3     ? kTrains
                                        : SimulatedProgram{.lifetime = seconds(20)};
  });
  node.standing_ = {false, true};
  node.call_at(seconds(6), [&] { node.standing_.is_formed = true; });
  std::vector<int> slots;
  node.call_at(seconds(7), [&] { slots = node.agent().slots(); });
  node.signal_at(seconds(30), SIGTERM);

  node.run();

  EXPECT_THAT(node.said_, testing::ElementsAre("spare 3 is started", "rank 1 is replaced by a spare",
                                               "spare 1 is started"));
  EXPECT_THAT(slots, testing::ElementsAre(0, 3, 2));
  EXPECT_EQ(node.starts(), 5);
  EXPECT_EQ(node.began_.size(), 1u);
  EXPECT_EQ(node.agent().restarts(), 1) << "starting another spare is one";
  EXPECT_EQ(node.running(), 0);
  EXPECT_TRUE(node.is_quiet());
}

TEST(NodeAgentShell, GoesOnWithFewerRanksUntilAProcessJoins) {
  Node node({.ranks = 3, .max_restarts = 1, .in_place = true, .fewest_ranks = 2}, [](int generation,
                                                                                     int slot) {
    return generation == 0 && slot == 1 ? fails_after(seconds(5)) : SimulatedProgram{.lifetime = seconds(20)};
  });
  node.standing_ = {false, true};
  node.call_at(seconds(6), [&] { node.standing_.is_formed = true; });
  std::vector<int> slots;
  node.call_at(seconds(15), [&] { slots = node.agent().slots(); });

  node.run();

  EXPECT_EQ(node.exit_code_, 0);
  EXPECT_THAT(node.said_, testing::ElementsAre("rank 1 is replaced", "spare 1 is started",
                                               "all are asked to wait", "3 ranks go on"));
  EXPECT_THAT(slots, testing::ElementsAre(0, 2, 1));
  EXPECT_TRUE(node.is_quiet());
}

TEST(NodeAgentShell, EndsSparesThatNobodyNeededWithTheJob) {
  Node node({.ranks = 2, .in_place = true, .spares = 2}, [](int, int slot) {
    return slot < 2 ? SimulatedProgram{.lifetime = seconds(5)}
                    : SimulatedProgram{.obeys_after = std::nullopt};
  });

  node.run();

  EXPECT_EQ(node.exit_code_, 0);
  EXPECT_EQ(node.now(), seconds(5));
  EXPECT_EQ(node.running(), 0);
  EXPECT_EQ(node.cleared_, 0);
  EXPECT_TRUE(node.is_quiet());
}

TEST(NodeAgentShell, ReplacesASpareOnlyIfItStoodBy) {
  for (const bool stood_by : {false, true}) {
    Node node({.ranks = 2, .max_restarts = 5, .in_place = true, .spares = 1}, [&](int, int slot) {
      return slot < 2 ? SimulatedProgram{.lifetime = seconds(5)} : fails_after(seconds(2));
    });
    node.stood_by_ = stood_by;

    node.run();

    EXPECT_EQ(node.exit_code_, 0);
    EXPECT_EQ(node.starts(), stood_by ? 5 : 3);
    EXPECT_EQ(node.agent().restarts(), stood_by ? 2 : 0);
  }
}

TEST(NodeAgentShell, GoesOnWithoutASpareThatCannotBeStarted) {
  Node node({.ranks = 2, .in_place = true, .spares = 1}, [](int, int slot) -> core::Result<SimulatedProgram> {
    if (slot == 2) return core::fail(core::Errc::io, "no more processes");
    return SimulatedProgram{.lifetime = seconds(5)};
  });

  node.run();

  EXPECT_EQ(node.exit_code_, 0);
  EXPECT_THAT(node.said_, testing::ElementsAre("spare 2 is started", "spare 2 is lost"));
}

}  // namespace
}  // namespace troupe::actors
