#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <variant>
#include <vector>

#include "actors/launch/node_agent.hpp"

namespace troupe::actors {
namespace {

using testing::ElementsAre;

constexpr ExitStatus kLost{0, SIGKILL};
/// Ranks form an epoch, and would leave it for another.
constexpr Standing kForming{false, true};
constexpr Standing kFormed{true, true};

NodeAgentConfig with_spares(int spares, int max_restarts = 0) {
  return {.ranks = 3, .max_restarts = max_restarts, .in_place = true, .spares = spares};
}

constexpr std::chrono::seconds at(int after) {
  return std::chrono::seconds(after);
}

template <class Effect>
std::vector<Effect> all(const NodeEffects& effects) {
  std::vector<Effect> found;
  for (const auto& effect : effects) {
    if (const auto* match = std::get_if<Effect>(&effect)) found.push_back(*match);
  }
  return found;
}

std::vector<int> slots_killed(const NodeEffects& effects) {
  std::vector<int> slots;
  for (const auto& sent : all<SignalRank>(effects)) {
    if (sent.signal == SIGKILL) slots.push_back(sent.slot);
  }
  return slots;
}

std::vector<int> spares_started(const NodeEffects& effects) {
  std::vector<int> slots;
  for (const auto& started : all<StartSpare>(effects)) slots.push_back(started.slot);
  return slots;
}

TEST(Spares, TakeTheRanksOfFailedOnesWithoutARestart) {
  NodeAgentMachine machine(with_spares(2));
  EXPECT_THAT(spares_started(machine.start(at(0))), ElementsAre(3, 4));

  const auto first = all<ReplaceRanks>(machine.exited(1, kLost, at(5), kFormed));

  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].losses[0].remedy, Remedy::spare);
  EXPECT_EQ(first[0].losses[0].ending.slot, 1);
  EXPECT_EQ(first[0].generation, 1);
  EXPECT_THAT(first[0].slots, ElementsAre(0, 3, 2));
  EXPECT_EQ(machine.rank_of(3), 1);
  EXPECT_EQ(machine.rank_of(1), std::nullopt);
  const auto second = all<ReplaceRanks>(machine.exited(1, kLost, at(10), kFormed));
  ASSERT_EQ(second.size(), 1u);
  EXPECT_THAT(second[0].slots, ElementsAre(0, 4, 2));
  EXPECT_EQ(second[0].losses[0].ending.slot, 3);
  EXPECT_EQ(machine.restarts(), 0);
  const auto third = machine.exited(0, kLost, at(15), kFormed);
  EXPECT_TRUE(all<ReplaceRanks>(third).empty()) << "none is left";
  EXPECT_EQ(machine.state(), "stopping");
}

TEST(Spares, TakeSeveralRanksThatFailTogether) {
  NodeAgentMachine machine(with_spares(3));
  machine.start(at(0));
  machine.committed(40);
  machine.exited(2, kLost, at(5), kFormed);
  machine.exited(0, kLost, at(5), kForming);

  const auto third = all<ReplaceRanks>(machine.exited(1, kLost, at(5), kForming));

  ASSERT_EQ(third.size(), 1u) << "losses of one forming are one failure without progress";
  EXPECT_EQ(third[0].generation, 3);
  EXPECT_THAT(third[0].slots, ElementsAre(4, 5, 3));
}

TEST(Spares, AreUselessForRanksThatDoNotStay) {
  NodeAgentMachine machine(with_spares(1, 1));
  machine.start(at(0));

  const auto effects = machine.exited(1, kLost, at(5), {true, false});

  EXPECT_TRUE(all<ReplaceRanks>(effects).empty());
  machine.exited(0, {0, SIGTERM}, at(6));
  const auto ended = machine.exited(2, {0, SIGTERM}, at(6));
  EXPECT_THAT(slots_killed(ended), ElementsAre(3));
  EXPECT_TRUE(all<StartGang>(ended).empty()) << "NA-1";
  const auto again = machine.spare_exited(3, kLost, true);
  EXPECT_EQ(all<StartGang>(again).size(), 1u);
  EXPECT_THAT(spares_started(again), ElementsAre(3));
  EXPECT_TRUE(all<SpareLost>(again).empty()) << "it was told to end";
}

TEST(Spares, RefillFreeSlotsWhileRestartsRemain) {
  NodeAgentMachine machine(with_spares(2, 1));
  machine.start(at(0));
  machine.exited(0, kLost, at(5), kFormed);
  machine.exited(1, kLost, at(5), kForming);

  EXPECT_THAT(spares_started(machine.formed()), ElementsAre(0)) << "there is one restart";

  EXPECT_EQ(machine.restarts(), 1);
  EXPECT_TRUE(machine.formed().empty());
  const auto third = all<ReplaceRanks>(machine.exited(2, kLost, at(9), kFormed));
  ASSERT_EQ(third.size(), 1u);
  EXPECT_THAT(third[0].slots, ElementsAre(3, 4, 0));
}

TEST(Spares, ThatStoodByAreRestartedWhenLost) {
  NodeAgentMachine machine(with_spares(2, 1));
  machine.start(at(0));

  const auto stood_by = machine.spare_exited(3, kLost, true);
  const auto did_not = machine.spare_exited(4, {2, 0}, false);
  const auto too_often = machine.spare_exited(3, kLost, true);

  EXPECT_THAT(spares_started(stood_by), ElementsAre(3));
  EXPECT_TRUE(spares_started(did_not).empty());
  EXPECT_TRUE(spares_started(too_often).empty()) << "no restart is left";
  ASSERT_EQ(all<SpareLost>(stood_by).size(), 1u);
  EXPECT_TRUE(all<SpareLost>(stood_by)[0].is_started_again);
  ASSERT_EQ(all<SpareLost>(did_not).size(), 1u);
  EXPECT_FALSE(all<SpareLost>(did_not)[0].stood_by);
  EXPECT_EQ(machine.state(), "watching") << "the job needs none of them";
}

TEST(Spares, KilledBeforeStandingByAreRestartedOnce) {
  NodeAgentMachine machine(with_spares(1, 9));
  machine.start(at(0));

  const auto killed = machine.spare_exited(3, kLost, false);
  const auto again = machine.spare_exited(3, kLost, false);

  EXPECT_THAT(spares_started(killed), ElementsAre(3));
  EXPECT_TRUE(spares_started(again).empty());
  EXPECT_EQ(machine.restarts(), 1);
  NodeAgentMachine other(with_spares(1, 9));
  other.start(at(0));
  other.spare_exited(3, kLost, false);
  other.spare_exited(3, kLost, true);
  EXPECT_THAT(spares_started(other.spare_exited(3, kLost, false)), ElementsAre(3)) << "it stood by meanwhile";
}

TEST(Spares, ThatOverlookTheirRankAreKilledForOthers) {
  NodeAgentMachine machine(with_spares(2));
  machine.start(at(0));
  machine.exited(1, kLost, at(5), kFormed);
  EXPECT_TRUE(machine.unnoticed_by({false, true, false}, at(6)).empty());

  const auto late = machine.unnoticed_by({false, true, false}, at(7));

  EXPECT_THAT(slots_killed(late), ElementsAre(3));
  const auto next = all<ReplaceRanks>(machine.exited(1, kLost, at(7), kForming));
  ASSERT_EQ(next.size(), 1u);
  EXPECT_THAT(next[0].slots, ElementsAre(0, 4, 2));
  machine.formed();
  EXPECT_TRUE(machine.unnoticed_by({false, true, false}, at(60)).empty());
}

TEST(Spares, MendOneRanksJobs) {
  NodeAgentMachine machine({.ranks = 1, .in_place = true, .spares = 1});
  machine.start(at(0));

  const auto effects = machine.exited(0, kLost, at(5), kFormed);

  ASSERT_EQ(all<ReplaceRanks>(effects).size(), 1u);
  EXPECT_THAT(all<ReplaceRanks>(effects)[0].slots, ElementsAre(1));
}

TEST(Spares, AreKilledBeforeTheJobEndsHoweverItDoes) {
  for (const ExitStatus status : {ExitStatus{}, ExitStatus{1, 0}}) {
    NodeAgentMachine machine(with_spares(2));
    machine.start(at(0));
    NodeEffects last;
    for (int rank = 0; rank < 3; ++rank) last = machine.exited(rank, status, at(5 + rank));

    EXPECT_THAT(slots_killed(last), ElementsAre(3, 4));
    EXPECT_TRUE(all<Finish>(last).empty());
    EXPECT_EQ(all<ArmDeadline>(last).size(), 1u) << "NA-2";
    EXPECT_TRUE(all<Finish>(machine.spare_exited(4, kLost, true)).empty());
    const auto end = machine.spare_exited(3, kLost, true);
    ASSERT_EQ(all<Finish>(end).size(), 1u);
    EXPECT_EQ(all<Finish>(end)[0].exit_code, status.code);
  }
}

TEST(Spares, ThatSurviveKillingDoNotHoldUpTheJob) {
  NodeAgentMachine machine(with_spares(1));
  machine.start(at(0));
  for (int rank = 0; rank < 3; ++rank) machine.exited(rank, {}, at(5));

  const auto end = machine.deadline(at(15));

  ASSERT_EQ(all<Finish>(end).size(), 1u);
  EXPECT_EQ(all<Finish>(end)[0].exit_code, 0);
}

}  // namespace
}  // namespace troupe::actors
