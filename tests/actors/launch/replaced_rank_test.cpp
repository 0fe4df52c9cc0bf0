#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <variant>
#include <vector>

#include "actors/launch/node_agent.hpp"

namespace troupe::actors {
namespace {

constexpr ExitStatus kKilled{0, SIGKILL};
constexpr Standing kAllStay{true, true};

NodeAgentConfig kept(int max_restarts = 3) {
  return {.ranks = 3, .max_restarts = max_restarts, .in_place = true};
}

NodeAgentMachine started_with(const NodeAgentConfig& config) {
  NodeAgentMachine machine(config);
  machine.start(std::chrono::seconds(0));
  return machine;
}

template <class Effect>
const Effect* found(const NodeEffects& effects) {
  for (const auto& effect : effects) {
    if (const auto* match = std::get_if<Effect>(&effect)) return match;
  }
  return nullptr;
}

TEST(ReplacedRank, IsTheOnlyOneThatIsStartedAgain) {
  auto machine = started_with(kept());

  const auto effects = machine.exited(1, kKilled, std::chrono::seconds(5), kAllStay);

  const auto* replaced = found<ReplaceRanks>(effects);
  ASSERT_NE(replaced, nullptr);
  EXPECT_EQ(replaced->losses[0].ending.rank, 1);
  EXPECT_EQ(replaced->losses[0].ending.kind, Ending::Kind::first);
  EXPECT_EQ(replaced->losses[0].ending.generation, 0);
  EXPECT_EQ(replaced->generation, 1);
  EXPECT_EQ(effects.size(), 1u) << "nothing is asked of the others";
  EXPECT_EQ(machine.restarts(), 1);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(machine.is_running(rank));
    const auto done = machine.exited(rank, {}, std::chrono::seconds(20 + rank), {true, false});
    if (rank < 2) continue;
    ASSERT_NE(found<EndGeneration>(done), nullptr);
    EXPECT_FALSE(found<EndGeneration>(done)->cause) << "that failure has ended";
    EXPECT_EQ(found<Finish>(done)->exit_code, 0);
  }
}

TEST(ReplacedRank, IsReplacedOnlyWhereAllOthersWouldStay) {
  struct Case {
    const char* what;
    NodeAgentConfig config;
    ExitStatus status;
    Standing others;
  };
  auto by_gangs = kept();
  by_gangs.in_place = false;
  for (const auto& [what, config, status, others] : {
           Case{"they take no steps yet", kept(), kKilled, {false, false}},
           Case{"one has left", kept(), kKilled, {true, false}},
           Case{"no restart is left", kept(0), kKilled, kAllStay},
           Case{"it ended because of another", kept(), {kExitFenced, 0}, kAllStay},
           Case{"its code forbids it", kept(), {kExitNoCheckpoint, 0}, kAllStay},
           Case{"restarts concern all", by_gangs, kKilled, kAllStay},
       }) {
    SCOPED_TRACE(what);
    auto machine = started_with(config);

    EXPECT_EQ(found<ReplaceRanks>(machine.exited(1, status, std::chrono::seconds(5), others)), nullptr);
    EXPECT_EQ(machine.generation(), 0);
  }
}

TEST(ReplacedRank, MayBeLostAgainOnceAllTakeSteps) {
  auto machine = started_with(kept());
  machine.exited(1, kKilled, std::chrono::seconds(5), kAllStay);

  const auto again = machine.exited(0, kKilled, std::chrono::seconds(10), kAllStay);

  ASSERT_NE(found<ReplaceRanks>(again), nullptr);
  EXPECT_EQ(found<ReplaceRanks>(again)->losses[0].ending.rank, 0);
  EXPECT_EQ(machine.restarts(), 2);
}

TEST(ReplacedRank, AnothersEarlierFailureRestartsTheGangCountingOnce) {
  auto machine = started_with(kept(1));
  machine.exited(1, kKilled, std::chrono::seconds(5), kAllStay);

  const auto second = machine.exited(2, kKilled, std::chrono::seconds(6), {false, false});

  EXPECT_EQ(found<ReplaceRanks>(second), nullptr);
  ASSERT_NE(found<SignalRank>(second), nullptr);
  EXPECT_EQ(found<SignalRank>(second)->signal, SIGTERM);
  machine.exited(0, {kExitFenced, 0}, std::chrono::seconds(7));
  const auto end = machine.exited(1, {0, SIGTERM}, std::chrono::seconds(7));
  ASSERT_NE(found<EndGeneration>(end), nullptr);
  const auto& [generation, endings, cause] = *found<EndGeneration>(end);
  ASSERT_TRUE(cause);
  EXPECT_EQ(endings[*cause].rank, 1) << "the first failure explains the rest";
  ASSERT_NE(found<StartGang>(end), nullptr) << "the restart that was begun in place is the only one";
  EXPECT_EQ(found<StartGang>(end)->generation, 2);
  EXPECT_EQ(machine.restarts(), 1);
}

TEST(ReplacedRank, WasKilledIfOnlyOthersAwaitTheNextEpoch) {
  auto machine = started_with(kept());
  const auto at = [](int count) { return std::chrono::milliseconds(count); };
  EXPECT_TRUE(machine.waited_for({true, false, false}, at(1000)).empty()) << "another may follow";
  EXPECT_TRUE(machine.waited_for({true, false, true}, at(1100)).empty());
  EXPECT_TRUE(machine.waited_for({true, true, true}, at(1500)).empty()) << "it was only late";
  EXPECT_TRUE(machine.waited_for({true, false, true}, at(1600)).empty());
  EXPECT_TRUE(machine.waited_for({true, false, true}, at(2000)).empty());

  const auto effects = machine.waited_for({true, false, true}, at(2100));

  ASSERT_NE(found<SignalRank>(effects), nullptr);
  EXPECT_EQ(found<SignalRank>(effects)->rank, 1);
  EXPECT_EQ(found<SignalRank>(effects)->signal, SIGKILL);
  EXPECT_TRUE(machine.waited_for({true, false, true}, at(2200)).empty()) << "once";
  const auto replaced = machine.exited(1, kKilled, at(2300), kAllStay);
  ASSERT_NE(found<ReplaceRanks>(replaced), nullptr);
  EXPECT_TRUE(found<ReplaceRanks>(replaced)->losses[0].ending.is_silent);
}

TEST(ReplacedRank, IsKilledAtOnceWhereItWasSeenStopped) {
  auto machine = started_with(kept());
  machine.seen_stopped(1);
  EXPECT_TRUE(machine.waited_for({true, false, false}, std::chrono::seconds(1)).empty())
      << "another may follow";

  const auto effects = machine.waited_for({true, false, true}, std::chrono::seconds(1));

  ASSERT_NE(found<SignalRank>(effects), nullptr);
  EXPECT_EQ(found<SignalRank>(effects)->rank, 1);
  EXPECT_EQ(found<SignalRank>(effects)->signal, SIGKILL);
}

TEST(ReplacedRank, IsNotKilledAtOnceForItsPredecessor) {
  auto machine = started_with(kept());
  machine.seen_stopped(1);
  machine.exited(1, kKilled, std::chrono::seconds(1), kAllStay);

  EXPECT_TRUE(machine.waited_for({true, false, true}, std::chrono::seconds(2)).empty());

  const auto effects = machine.waited_for({true, false, true}, std::chrono::seconds(3));
  ASSERT_NE(found<SignalRank>(effects), nullptr) << "it hangs";
}

/// How often rank 1 is replaced that ends like this again and again, in a job that takes no steps.
int replaced_while_it_lasts(NodeAgentMachine& machine, ExitStatus status) {
  machine.committed(7);
  int replaced = 0;
  for (int i = 0; i < 30 && machine.state() == "watching"; ++i) {
    replaced += found<ReplaceRanks>(machine.exited(1, status, std::chrono::seconds(5 * (i + 1)), kAllStay)) !=
                nullptr;
  }
  return replaced;
}

TEST(ReplacedRank, MayBeKilledMoreOftenThanItMayFail) {
  auto machine = started_with(kept(100));

  EXPECT_EQ(replaced_while_it_lasts(machine, kKilled), 11)
      << "but not for ever: it may be for want of memory";
  EXPECT_EQ(machine.state(), "stopping");
}

TEST(ReplacedRank, WithoutProgressEndsTheJobAsAGangWould) {
  auto machine = started_with(kept(100));

  EXPECT_EQ(replaced_while_it_lasts(machine, {0, SIGSEGV}), 2)
      << "the third failure after the same step is the last";
  EXPECT_EQ(machine.state(), "stopping");
  machine.exited(0, {0, SIGTERM}, std::chrono::seconds(60));
  const auto end = machine.exited(2, {0, SIGTERM}, std::chrono::seconds(60));
  ASSERT_NE(found<Finish>(end), nullptr);
  EXPECT_EQ(found<Finish>(end)->exit_code, 1);
  EXPECT_NE(machine.verdict().find("no progress"), std::string::npos) << machine.verdict();
}

}  // namespace
}  // namespace troupe::actors
