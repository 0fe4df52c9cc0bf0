#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <variant>
#include <vector>

#include "actors/launch/node_agent.hpp"
#include "core/random.hpp"

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

/// Four ranks on two nodes, of which one is lost and comes back at any time. Everything follows from the
/// seed.
class RandomNodes {
 public:
  explicit RandomNodes(std::uint64_t seed)
      : random_(seed, "nodes"), machine_({.ranks = 4, .nodes = 2, .max_restarts = below(5)}) {
    perform(machine_.start(now_));
  }

  void run() {
    for (int event = 0; event < 3000 && !finished_; ++event) {
      now_ += milliseconds(below(2000));
      happen();
    }
    EXPECT_TRUE(finished_) << "NA-2: every wait has a deadline";
    EXPECT_TRUE(machine_.node_ready(1, now_).empty()) << "NA-3";
    EXPECT_TRUE(machine_.node_lost(1, 2, 2, now_).empty()) << "NA-3";
  }

 private:
  int below(int limit) {
    return static_cast<int>(random_.below(static_cast<std::uint32_t>(limit), draws_++));
  }

  void happen() {
    const int dice = below(20);
    if (dice == 0) {
      is_ready_ = false;
      std::erase_if(alive_, [](int rank) { return rank >= 2; });
      perform(machine_.node_lost(1, 2, 2, now_));
    } else if (dice < 5 && !is_ready_) {
      is_ready_ = true;
      perform(machine_.node_ready(1, now_));
    } else if (dice == 5 && below(10) == 0) {
      perform(machine_.signalled(SIGTERM));
    } else if (dice < 10 && is_armed_) {
      is_armed_ = false;
      perform(machine_.deadline(now_));
    } else if (!alive_.empty()) {
      const auto at = alive_.begin() + below(static_cast<int>(alive_.size()));
      const int rank = *at;
      alive_.erase(at);
      perform(machine_.exited(rank, {below(2) == 0 ? 0 : kExitFenced, 0}, now_));
    }
  }

  void perform(const NodeEffects& effects) {
    for (const NodeEffect& effect : effects) {
      EXPECT_FALSE(finished_) << "NA-3: nothing comes after Finish";
      if (std::holds_alternative<StartGang>(effect)) {
        EXPECT_TRUE(alive_.empty() && is_ready_) << "NA-1";
        alive_ = {0, 1, 2, 3};
      } else if (std::holds_alternative<EndGeneration>(effect)) {
        is_ready_ = false;  // it is to clear away
        alive_.clear();
      } else if (std::holds_alternative<Finish>(effect)) {
        finished_ = true;
      }
      if (std::holds_alternative<ArmDeadline>(effect)) is_armed_ = true;
      if (std::holds_alternative<CancelDeadline>(effect)) is_armed_ = false;
    }
    EXPECT_TRUE(is_armed_ || finished_ || machine_.state() == "watching") << "NA-2, " << machine_.state();
  }

  core::CounterRandom random_;
  std::uint64_t draws_ = 0;
  NodeAgentMachine machine_;
  std::vector<int> alive_;
  bool is_ready_ = true;
  bool is_armed_ = false;
  bool finished_ = false;
  std::chrono::nanoseconds now_{};
};

TEST(LostNode, MayBeLostAndComeBackAtAnyTime) {
  for (std::uint64_t seed = 0; seed < 5000 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomNodes(seed).run();
  }
}

}  // namespace
}  // namespace troupe::actors
