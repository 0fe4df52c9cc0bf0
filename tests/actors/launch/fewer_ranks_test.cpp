#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <optional>
#include <variant>
#include <vector>

#include "actors/launch/node_agent.hpp"

namespace troupe::actors {
namespace {

using testing::ElementsAre;

constexpr ExitStatus kDied{0, SIGKILL};
constexpr Standing kStay{true, true};
constexpr Standing kBegin{false, true};

constexpr std::chrono::seconds second(int count) {
  return std::chrono::seconds(count);
}

NodeAgentMachine elastic(int fewest, int max_restarts = 0) {
  NodeAgentMachine machine(
      {.ranks = 4, .max_restarts = max_restarts, .in_place = true, .fewest_ranks = fewest});
  machine.start(second(0));
  return machine;
}

std::optional<ReplaceRanks> replaced(const NodeEffects& effects) {
  for (const auto& effect : effects) {
    if (const auto* match = std::get_if<ReplaceRanks>(&effect)) return *match;
  }
  return std::nullopt;
}

TEST(FewerRanks, GoOnUntilThereAreTheFewest) {
  auto machine = elastic(2);

  const auto three = replaced(machine.exited(1, kDied, second(5), kStay));
  ASSERT_TRUE(three);
  EXPECT_EQ(three->losses[0].remedy, Remedy::fewer_ranks);
  EXPECT_EQ(three->losses[0].ending.slot, 1);
  EXPECT_THAT(three->slots, ElementsAre(0, 2, 3));
  EXPECT_EQ(machine.rank_of(3), 2);
  EXPECT_EQ(machine.rank_of(1), std::nullopt);
  const auto two = replaced(machine.exited(0, kDied, second(10), kStay));
  ASSERT_TRUE(two);
  EXPECT_EQ(two->losses[0].ending.slot, 0);
  EXPECT_THAT(two->slots, ElementsAre(2, 3));
  EXPECT_EQ(machine.restarts(), 0);
  EXPECT_FALSE(replaced(machine.exited(1, kDied, second(15), kStay)));
  EXPECT_EQ(machine.state(), "stopping");
}

TEST(FewerRanks, AreLeftBySeveralLossesAtOnce) {
  auto machine = elastic(1);
  machine.exited(3, kDied, second(5), kStay);
  machine.exited(0, kDied, second(5), kBegin);

  const auto last = replaced(machine.exited(0, kDied, second(5), kBegin));

  ASSERT_TRUE(last);
  EXPECT_THAT(last->slots, ElementsAre(2));
}

template <class Effect>
std::optional<Effect> one(const NodeEffects& effects) {
  for (const auto& effect : effects) {
    if (const auto* match = std::get_if<Effect>(&effect)) return *match;
  }
  return std::nullopt;
}

TEST(FewerRanks, GrowAgainAfterAStepOnceAnotherStandsBy) {
  auto machine = elastic(2, 1);
  EXPECT_EQ(replaced(machine.exited(2, kDied, second(5), kStay))->losses[0].remedy, Remedy::fewer_ranks);
  EXPECT_TRUE(machine.stand_by({2}, second(7)).empty()) << "the three have not begun yet";
  EXPECT_EQ(one<StartSpare>(machine.formed())->slot, 2);
  EXPECT_EQ(machine.restarts(), 1);
  EXPECT_TRUE(machine.stand_by({}, second(7)).empty()) << "it is not there yet";
  EXPECT_EQ(one<AskToWait>(machine.stand_by({2}, second(7)))->generation, 1);
  EXPECT_TRUE(machine.stand_by({2}, second(7)).empty()) << "once";
  EXPECT_TRUE(machine.waited_for({true, false, true}, second(8)).empty());

  const auto admitted = one<AdmitSpares>(machine.waited_for({true, true, true}, second(9)));

  ASSERT_TRUE(admitted);
  EXPECT_EQ(admitted->generation, 2);
  EXPECT_THAT(admitted->slots, ElementsAre(0, 1, 3, 2));
  EXPECT_EQ(machine.rank_of(2), 3);
  EXPECT_TRUE(machine.is_running(3));
  EXPECT_TRUE(machine.is_rebuilding());
}

TEST(FewerRanks, GoOnWhenTheJoiningRankIsLost) {
  auto machine = elastic(2, 1);
  machine.exited(2, kDied, second(5), kStay);
  machine.formed();
  machine.stand_by({2}, second(7));
  machine.spare_exited(2, kDied, true);

  const auto admitted = one<AdmitSpares>(machine.waited_for({true, true, true}, second(9)));

  ASSERT_TRUE(admitted);
  EXPECT_THAT(admitted->slots, ElementsAre(0, 1, 3));
}

TEST(FewerRanks, LoseOneWhileTheyWaitForMore) {
  auto machine = elastic(2, 1);
  machine.exited(2, kDied, second(5), kStay);
  machine.formed();
  machine.stand_by({2}, second(7));

  const auto lost = replaced(machine.exited(0, kDied, second(7), kStay));

  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->losses[0].remedy, Remedy::spare);
  EXPECT_THAT(lost->slots, ElementsAre(2, 1, 3));
  EXPECT_FALSE(one<AdmitSpares>(machine.waited_for({true, true, true}, second(8))));
}

TEST(FewerRanks, AreRestartedWhereThereMustNotBeFewer) {
  auto machine = elastic(3, 2);
  machine.exited(2, kDied, second(5), kStay);

  EXPECT_EQ(replaced(machine.exited(2, kDied, second(10), kBegin))->losses[0].remedy, Remedy::start_again);
}

TEST(FewerRanks, FinishTheJob) {
  auto machine = elastic(2);
  machine.exited(1, kDied, second(5), kStay);
  machine.formed();
  for (int rank = 0; rank < 2; ++rank) machine.exited(rank, {}, second(20));

  const auto end = machine.exited(2, {}, second(20));

  EXPECT_EQ(std::get<Finish>(end.back()).exit_code, 0);
}

TEST(FewerRanks, AreAllAgainWhereTheGangIsStartedAnew) {
  auto machine = elastic(3, 2);
  machine.exited(1, kDied, second(5), kStay);
  ASSERT_EQ(machine.slots().size(), 3u);

  machine.exited(0, kDied, second(15), {true, false});
  for (const int rank : {1, 2}) machine.exited(rank, {0, SIGTERM}, second(16));
  const auto anew = machine.spare_exited(1, kDied, true);

  ASSERT_TRUE(one<StartGang>(anew));
  EXPECT_THAT(machine.slots(), ElementsAre(0, 1, 2, 3));
}

}  // namespace
}  // namespace troupe::actors
