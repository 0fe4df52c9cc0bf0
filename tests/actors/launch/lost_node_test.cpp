#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <set>
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

  const auto lost = machine.node_lost(1, seconds(5));

  ASSERT_NE(find_effect<SignalRank>(lost), nullptr);
  EXPECT_EQ(find_effect<SignalRank>(lost)->signal, SIGTERM);
  machine.exited(0, {0, SIGTERM}, seconds(6));
  const auto end = machine.exited(1, {kExitFenced, 0}, seconds(6));
  expect_cause(end, 2, Ending::Kind::lost);
  EXPECT_EQ(find_effect<Finish>(end)->exit_code, 1);
}

TEST(LostNode, ExplainsRanksThatEndedBeforeItWasNoticed) {
  auto machine = on_two_nodes(0);
  machine.exited(0, {kExitFenced, 0}, seconds(5));

  machine.node_lost(1, seconds(5) + milliseconds(200));
  const auto end = machine.exited(1, {kExitFenced, 0}, seconds(6));

  expect_cause(end, 2, Ending::Kind::lost);
}

TEST(LostNode, IsNotTheCauseAfterARankThatFailed) {
  auto machine = on_two_nodes(0);
  machine.exited(0, {7, 0}, seconds(5));

  machine.node_lost(1, seconds(5) + milliseconds(200));

  expect_cause(machine.exited(1, {0, SIGTERM}, seconds(6)), 0, Ending::Kind::first);
}

TEST(LostNode, IsWaitedForBeforeARestart) {
  auto machine = on_two_nodes(3);
  machine.node_lost(1, seconds(5));
  machine.exited(0, {0, SIGTERM}, seconds(6));

  const auto end = machine.exited(1, {0, SIGTERM}, seconds(6));

  EXPECT_EQ(find_effect<StartGang>(end), nullptr);
  EXPECT_EQ(find_effect<ArmDeadline>({end.back()})->after, seconds(60));
  const auto back = machine.node_ready(1, seconds(30));
  ASSERT_NE(find_effect<StartGang>(back), nullptr);
  EXPECT_EQ(find_effect<StartGang>(back)->generation, 1);
}

TEST(LostNode, EndsTheJobUnlessItReturnsInTime) {
  auto machine = on_two_nodes(3);
  machine.node_lost(1, seconds(5));
  machine.exited(0, {0, SIGTERM}, seconds(6));
  machine.exited(1, {0, SIGTERM}, seconds(6));

  const auto end = machine.deadline(seconds(66));

  ASSERT_NE(find_effect<Finish>(end), nullptr);
  EXPECT_EQ(machine.verdict(), "node 1 did not come back within 60 s");
}

TEST(LostNode, MayBeLostAgainDuringARestartPause) {
  auto machine = on_two_nodes(9);
  for (int failure = 0; failure < 2; ++failure) {
    for (int rank = 0; rank < 4; ++rank) machine.exited(rank, {1, 0}, milliseconds(failure));
    if (failure == 0) machine.node_ready(1, milliseconds(1));
  }
  ASSERT_EQ(machine.state(), "waiting") << "the second quick failure is followed by a pause";
  machine.node_ready(1, seconds(1));
  machine.node_lost(1, seconds(1));

  EXPECT_EQ(find_effect<StartGang>(machine.deadline(seconds(2))), nullptr);
  EXPECT_NE(find_effect<StartGang>(machine.node_ready(1, seconds(3))), nullptr);
}

TEST(LostNode, RestartBeginsOnlyWhenEveryNodeIsClear) {
  auto machine = on_two_nodes(3);
  for (const int rank : {3, 1, 0}) machine.exited(rank, {1, 0}, seconds(5));

  const auto end = machine.exited(2, {1, 0}, seconds(5));

  EXPECT_EQ(find_effect<StartGang>(end), nullptr) << "NA-1";
  EXPECT_NE(find_effect<StartGang>(machine.node_ready(1, seconds(5))), nullptr);
}

TEST(LostNode, ASignalEndsTheWaitForIt) {
  auto machine = on_two_nodes(3);
  machine.node_lost(1, seconds(5));
  machine.exited(0, {0, SIGTERM}, seconds(6));
  machine.exited(1, {0, SIGTERM}, seconds(6));

  const auto end = machine.signalled(SIGINT);

  ASSERT_NE(find_effect<Finish>(end), nullptr);
  EXPECT_EQ(find_effect<Finish>(end)->exit_code, 128 + SIGINT);
}

constexpr Standing kStay{true, true};

/// Like on_two_nodes(), and each has a spare: slots 0, 1, (2) and 3, 4, (5).
NodeAgentConfig with_spares() {
  return {.ranks = 4, .nodes = 2, .shares = {{2, 1}, {2, 1}}, .max_restarts = 3, .in_place = true};
}

TEST(LostNode, LeavesItsRanksToTheSparesOfOthers) {
  auto config = with_spares();
  config.shares[0].spares = 2;
  NodeAgentMachine machine(config);
  EXPECT_EQ(find_effect<StartGang>(machine.start(seconds(0)))->slots, (std::vector{0, 1, 4, 5}));

  const auto lost = machine.node_lost(1, seconds(5), kStay);

  const auto* const replaced = find_effect<ReplaceRanks>(lost);
  ASSERT_NE(replaced, nullptr);
  ASSERT_EQ(replaced->losses.size(), 2u);
  EXPECT_EQ(replaced->losses[1].ending.kind, Ending::Kind::lost);
  EXPECT_EQ(replaced->slots, (std::vector{0, 1, 2, 3}));
  EXPECT_EQ(find_effect<SignalRank>(lost), nullptr) << "the others stay";
  machine.formed();
  EXPECT_TRUE(machine.spares().empty());
  machine.node_ready(1, seconds(20));
  EXPECT_TRUE(machine.has_newcomers());
  machine.take_in();
  EXPECT_EQ(machine.spares(), (std::set{4, 5, 6})) << "it has spares for others now";
  EXPECT_EQ(machine.restarts(), 1);
}

TEST(LostNode, ASpareOfTheSameNodeComesFirst) {
  auto config = with_spares();
  config.max_restarts = 0;
  NodeAgentMachine machine(config);
  machine.start(seconds(0));

  const auto near = machine.exited(3, {0, SIGKILL}, seconds(5), kStay);
  const auto far = machine.exited(2, {0, SIGKILL}, seconds(6), kStay);

  EXPECT_EQ(find_effect<ReplaceRanks>(near)->slots, (std::vector{0, 1, 3, 5}));
  EXPECT_EQ(find_effect<ReplaceRanks>(far)->slots, (std::vector{0, 1, 2, 5}));
}

/// Node 1 need not be there.
NodeAgentMachine elastic(int max_restarts = 0) {
  NodeAgentMachine machine({.ranks = 4,
                            .nodes = 2,
                            .fewest_nodes = 1,
                            .max_restarts = max_restarts,
                            .in_place = true,
                            .fewest_ranks = 2});
  machine.start(seconds(0));
  return machine;
}

TEST(LostNode, IsLeftBehindIfUnneededAndTakenInLater) {
  auto machine = elastic();

  const auto* const fewer = find_effect<ReplaceRanks>(machine.node_lost(1, seconds(5), kStay));
  ASSERT_NE(fewer, nullptr);
  EXPECT_EQ(fewer->slots, (std::vector{0, 1}));
  machine.node_ready(1, seconds(6));
  EXPECT_TRUE(machine.take_in().empty()) << "they are forming";
  machine.formed();
  EXPECT_NE(find_effect<StartSpare>(machine.take_in()), nullptr);
  EXPECT_EQ(machine.restarts(), 0) << "the job could do without it";
  EXPECT_EQ(find_effect<AskToWait>(machine.stand_by({3}, seconds(7))), nullptr) << "2 comes too";
  EXPECT_NE(find_effect<AskToWait>(machine.stand_by({2, 3}, seconds(8))), nullptr);

  const auto admitted = machine.waited_for({true, true}, seconds(9));

  EXPECT_EQ(find_effect<AdmitSpares>(admitted)->slots, (std::vector{0, 1, 2, 3}));
}

TEST(LostNode, ProcessThatNeverStandsByDoesNotBlockOthers) {
  auto machine = elastic();
  machine.node_lost(1, seconds(5), kStay);
  machine.formed();
  machine.node_ready(1, seconds(6));
  machine.take_in();
  machine.stand_by({3}, seconds(7));

  EXPECT_NE(find_effect<AskToWait>(machine.stand_by({3}, seconds(9))), nullptr);
}

TEST(LostNode, AnotherMayJoinAJobThatRunsWithFewer) {
  auto machine = elastic();

  machine.node_added({2, 1}, seconds(5));

  EXPECT_EQ(find_effect<StartSpare>(machine.take_in())->slot, 4);
  EXPECT_EQ(machine.slot_count(), 7);
  EXPECT_EQ(machine.node_of(6), 2);
}

TEST(LostNode, IsNotAwaitedByAGangRestartedWithoutIt) {
  auto machine = elastic(3);
  machine.node_lost(1, seconds(5));
  machine.exited(0, {0, SIGTERM}, seconds(6));

  const auto anew = machine.exited(1, {0, SIGTERM}, seconds(6));

  ASSERT_NE(find_effect<StartGang>(anew), nullptr);
  EXPECT_EQ(find_effect<StartGang>(anew)->slots, (std::vector{0, 1}));
}

TEST(LostNode, RanksThatHaveLostEachOtherFormAgain) {
  auto machine = elastic();
  const std::vector<bool> all{true, true, true, true};
  EXPECT_TRUE(machine.waited_for(all, seconds(5)).empty());

  const auto again = machine.waited_for(all, seconds(6));

  ASSERT_NE(find_effect<FormAgain>(again), nullptr);
  EXPECT_EQ(find_effect<FormAgain>(again)->slots, (std::vector{0, 1, 2, 3}));
  EXPECT_EQ(find_effect<FormAgain>(again)->generation, 1);
}

TEST(LostNode, SuccessorOfNodeZeroRestartsItsRanks) {
  auto config = with_spares();
  config.first_generation = 8;
  NodeAgentMachine machine(config);

  const auto adopted = machine.adopt({7, {0, 1, 3, 4}, {3, 4, 5}}, seconds(0));

  const auto* const replaced = find_effect<ReplaceRanks>(adopted);
  ASSERT_NE(replaced, nullptr);
  EXPECT_EQ(replaced->generation, 8);
  EXPECT_EQ(replaced->losses[0].remedy, Remedy::spare);
  EXPECT_EQ(replaced->losses[1].remedy, Remedy::start_again);
  EXPECT_EQ(replaced->slots, (std::vector{5, 1, 3, 4}));
  EXPECT_EQ(machine.restarts(), 1);
}

TEST(LostNode, AllRestartWhereTheNextLauncherCannotMendIt) {
  auto config = with_spares();
  config.first_generation = 8;
  config.max_restarts = 0;
  NodeAgentMachine machine(config);

  const auto anew = machine.adopt({7, {0, 1, 3, 4}, {3, 4}}, seconds(0));

  ASSERT_NE(find_effect<StartGang>(anew), nullptr);
  EXPECT_EQ(find_effect<StartGang>(anew)->generation, 8);
}

TEST(LostNode, SuccessorWithoutRanksChangesNobodysPlace) {
  auto config = with_spares();
  config.first_generation = 8;
  NodeAgentMachine machine(config);

  const auto again = machine.adopt({7, {3, 4}, {3, 4}}, seconds(0));

  ASSERT_NE(find_effect<FormAgain>(again), nullptr);
  machine.formed();
  EXPECT_NE(find_effect<StartSpare>(machine.take_in()), nullptr) << "its own processes come later";
}

TEST(LostNode, SuccessorStartsWhatWasStillToBeStarted) {
  auto config = with_spares();
  config.first_generation = 8;
  NodeAgentMachine machine(config);
  // The process in slot 5 has ended, and was to be started again once the ranks had formed.
  machine.adopt({7, {3, 4}, {3, 4}}, seconds(0));

  const auto formed = machine.formed();

  const auto* const started = find_effect<StartSpare>(formed);
  ASSERT_NE(started, nullptr);
  EXPECT_EQ(started->slot, 5);
}

/// Ranks and spares on two nodes, of which one is lost and comes back at any time. Everything follows from
/// the seed.
class RandomNodes {
 public:
  explicit RandomNodes(std::uint64_t seed) : random_(seed, "nodes"), machine_(config()) {
    perform(machine_.start(now_));
  }

  void run() {
    for (int event = 0; event < 3000 && !finished_; ++event) {
      now_ += milliseconds(below(2000));
      happen();
    }
    EXPECT_TRUE(finished_) << "NA-2: every wait has a deadline";
    EXPECT_TRUE(machine_.node_ready(1, now_).empty()) << "NA-3";
    EXPECT_TRUE(machine_.node_lost(1, now_).empty()) << "NA-3";
  }

 private:
  int below(int limit) {
    return static_cast<int>(random_.below(static_cast<std::uint32_t>(limit), draws_++));
  }

  NodeAgentConfig config() {
    NodeAgentConfig config{.ranks = 4, .nodes = 2, .shares = {{2, 0}, {2, 0}}, .max_restarts = below(5)};
    if (below(2) == 0) return config;
    config.in_place = true;
    config.fewest_nodes = 1 + below(2);
    config.fewest_ranks = below(4);
    for (NodeShare& share : config.shares) share.spares = below(3);
    return config;
  }

  void happen() {
    const int dice = below(24);
    if (dice == 0) {
      is_ready_ = false;
      std::erase_if(alive_, [this](int slot) { return machine_.node_of(slot) == 1; });
      perform(machine_.node_lost(1, now_, {below(2) == 0, below(4) > 0}));
    } else if (dice < 5 && !is_ready_) {
      is_ready_ = true;
      perform(machine_.node_ready(1, now_));
    } else if (dice == 5 && below(10) == 0) {
      perform(machine_.signalled(SIGTERM));
    } else if (dice < 10 && is_armed_) {
      is_armed_ = false;
      perform(machine_.deadline(now_));
    } else if (dice == 20) {
      perform(machine_.formed());
      perform(machine_.take_in());
    } else if (dice == 21) {
      perform(machine_.stand_by({machine_.spares().begin(), machine_.spares().end()}, now_));
    } else if (dice == 22) {
      perform(machine_.waited_for(std::vector<bool>(machine_.slots().size(), true), now_));
    } else if (!alive_.empty()) {
      end_one();
    }
  }

  void end_one() {
    const auto at = alive_.begin() + below(static_cast<int>(alive_.size()));
    const int slot = *at;
    alive_.erase(at);
    const ExitStatus status{below(2) == 0 ? 0 : kExitFenced, 0};
    const auto rank = machine_.rank_of(slot);
    perform(rank ? machine_.exited(*rank, below(3) == 0 ? ExitStatus{0, SIGKILL} : status, now_,
                                   {below(2) == 0, below(4) > 0})
                 : machine_.spare_exited(slot, {0, SIGKILL}, below(4) > 0));
  }

  void start(int slot) {
    EXPECT_EQ(std::ranges::count(alive_, slot), 0) << "a slot has one process";
    EXPECT_TRUE(is_ready_ || machine_.node_of(slot) == 0) << "NA-1";
    alive_.push_back(slot);
  }

  void perform(const NodeEffects& effects) {
    for (const NodeEffect& effect : effects) {
      EXPECT_FALSE(finished_) << "NA-3: nothing comes after Finish";
      if (const auto* gang = std::get_if<StartGang>(&effect)) {
        EXPECT_TRUE(alive_.empty()) << "NA-1";
        for (const int slot : gang->slots) start(slot);
      } else if (const auto* spare = std::get_if<StartSpare>(&effect)) {
        start(spare->slot);
      } else if (const auto* replaced = std::get_if<ReplaceRanks>(&effect)) {
        for (const auto& loss : replaced->losses) {
          if (loss.remedy == Remedy::start_again) start(loss.ending.slot);
        }
        for (const int slot : replaced->slots) EXPECT_EQ(std::ranges::count(alive_, slot), 1);
      } else if (const auto* admitted = std::get_if<AdmitSpares>(&effect)) {
        for (const int slot : admitted->slots) EXPECT_EQ(std::ranges::count(alive_, slot), 1);
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
  std::vector<int> alive_;  ///< slots
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
