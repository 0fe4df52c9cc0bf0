#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <variant>

#include "actors/launch/node_agent.hpp"

namespace troupe::actors {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

template <class Effect>
const Effect* find_effect(const NodeEffects& effects) {
  for (const NodeEffect& effect : effects) {
    if (const auto* match = std::get_if<Effect>(&effect)) return match;
  }
  return nullptr;
}

/// Four ranks on two nodes; 2 and 3 are on node 1.
NodeAgentMachine on_two_nodes(int max_restarts) {
  NodeAgentMachine machine(
      {.ranks = 4, .nodes = 2, .max_restarts = max_restarts, .node_patience = seconds(60)});
  machine.start(seconds(0));
  return machine;
}

void expect_cause(const NodeEffects& effects, int rank, Ending::Kind kind) {
  const auto* const end = find_effect<EndGeneration>(effects);
  ASSERT_NE(end, nullptr);
  ASSERT_TRUE(end->cause);
  EXPECT_EQ(end->endings[*end->cause].rank, rank);
  EXPECT_EQ(end->endings[*end->cause].kind, kind);
}

TEST(LostNode, StopsTheOthersAtOnceAndIsTheCause) {
  auto machine = on_two_nodes(0);

  const auto lost = machine.node_lost(1, 2, 2, seconds(5));

  ASSERT_NE(find_effect<SignalRank>(lost), nullptr);
  EXPECT_EQ(find_effect<SignalRank>(lost)->signal, SIGTERM);
  machine.exited(0, {0, SIGTERM}, seconds(6));
  const auto end = machine.exited(1, {kExitFenced, 0}, seconds(6));
  expect_cause(end, 2, Ending::Kind::lost);
  EXPECT_EQ(find_effect<Finish>(end)->exit_code, 1);
}

TEST(LostNode, ExplainsRanksThatEndedBecauseOfItBeforeItWasNoticed) {
  auto machine = on_two_nodes(0);
  machine.exited(0, {kExitFenced, 0}, seconds(5));

  machine.node_lost(1, 2, 2, seconds(5) + milliseconds(200));
  const auto end = machine.exited(1, {kExitFenced, 0}, seconds(6));

  expect_cause(end, 2, Ending::Kind::lost);
}

TEST(LostNode, IsNotTheCauseAfterARankThatFailed) {
  auto machine = on_two_nodes(0);
  machine.exited(0, {7, 0}, seconds(5));

  machine.node_lost(1, 2, 2, seconds(5) + milliseconds(200));

  expect_cause(machine.exited(1, {0, SIGTERM}, seconds(6)), 0, Ending::Kind::first);
}

TEST(LostNode, IsWaitedForBeforeARestart) {
  auto machine = on_two_nodes(3);
  machine.node_lost(1, 2, 2, seconds(5));
  machine.exited(0, {0, SIGTERM}, seconds(6));

  const auto end = machine.exited(1, {0, SIGTERM}, seconds(6));

  EXPECT_EQ(find_effect<StartGang>(end), nullptr);
  EXPECT_EQ(find_effect<ArmDeadline>({end.back()})->after, seconds(60));
  const auto back = machine.node_ready(1, seconds(30));
  ASSERT_NE(find_effect<StartGang>(back), nullptr);
  EXPECT_EQ(find_effect<StartGang>(back)->generation, 1);
}

TEST(LostNode, EndsTheJobIfItDoesNotComeBackInTime) {
  auto machine = on_two_nodes(3);
  machine.node_lost(1, 2, 2, seconds(5));
  machine.exited(0, {0, SIGTERM}, seconds(6));
  machine.exited(1, {0, SIGTERM}, seconds(6));

  const auto end = machine.deadline(seconds(66));

  ASSERT_NE(find_effect<Finish>(end), nullptr);
  EXPECT_EQ(machine.verdict(), "node 1 did not come back within 60 s");
}

TEST(LostNode, MayBeLostAgainDuringThePauseBeforeARestart) {
  auto machine = on_two_nodes(9);
  for (int failure = 0; failure < 2; ++failure) {
    for (int rank = 0; rank < 4; ++rank) machine.exited(rank, {1, 0}, milliseconds(failure));
    if (failure == 0) machine.node_ready(1, milliseconds(1));
  }
  ASSERT_EQ(machine.state(), "waiting") << "the second quick failure is followed by a pause";
  machine.node_ready(1, seconds(1));
  machine.node_lost(1, 2, 2, seconds(1));

  EXPECT_EQ(find_effect<StartGang>(machine.deadline(seconds(2))), nullptr);
  EXPECT_NE(find_effect<StartGang>(machine.node_ready(1, seconds(3))), nullptr);
}

TEST(LostNode, ARestartBeginsOnlyWhenEveryNodeHasClearedAway) {
  auto machine = on_two_nodes(3);
  for (const int rank : {3, 1, 0}) machine.exited(rank, {1, 0}, seconds(5));

  const auto end = machine.exited(2, {1, 0}, seconds(5));

  EXPECT_EQ(find_effect<StartGang>(end), nullptr) << "NA-1";
  EXPECT_NE(find_effect<StartGang>(machine.node_ready(1, seconds(5))), nullptr);
}

TEST(LostNode, ASignalEndsTheWaitForIt) {
  auto machine = on_two_nodes(3);
  machine.node_lost(1, 2, 2, seconds(5));
  machine.exited(0, {0, SIGTERM}, seconds(6));
  machine.exited(1, {0, SIGTERM}, seconds(6));

  const auto end = machine.signalled(SIGINT);

  ASSERT_NE(find_effect<Finish>(end), nullptr);
  EXPECT_EQ(find_effect<Finish>(end)->exit_code, 128 + SIGINT);
}

}  // namespace
}  // namespace troupe::actors
