#include "actors/launch/node_agent.hpp"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <csignal>
#include <optional>
#include <variant>
#include <vector>

#include "core/random.hpp"

namespace troupe::actors {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr ExitStatus kDone{};
constexpr ExitStatus kFailed{1, 0};

template <class Effect>
std::vector<Effect> all_of(const NodeEffects& effects) {
  std::vector<Effect> found;
  for (const NodeEffect& effect : effects) {
    if (const auto* match = std::get_if<Effect>(&effect)) found.push_back(*match);
  }
  return found;
}

template <class Effect>
std::optional<Effect> one_of(const NodeEffects& effects) {
  const auto found = all_of<Effect>(effects);
  return found.size() == 1 ? std::optional(found[0]) : std::nullopt;
}

/// The one effect of this kind, or one of no meaning in a test that has failed.
template <class Effect>
Effect only(const NodeEffects& effects) {
  const auto found = one_of<Effect>(effects);
  EXPECT_TRUE(found) << "expected one such effect";
  return found.value_or(Effect{});
}

/// The ending that explains the failure.
Ending cause_of(const NodeEffects& effects) {
  const auto end = only<EndGeneration>(effects);
  const bool has_cause = end.cause && *end.cause < end.endings.size();
  EXPECT_TRUE(has_cause) << "expected a cause";
  return has_cause ? end.endings[*end.cause] : Ending{-1};
}

std::vector<int> ranks_sent(int signal, const NodeEffects& effects) {
  std::vector<int> ranks;
  for (const SignalRank& sent : all_of<SignalRank>(effects)) {
    if (sent.signal == signal) ranks.push_back(sent.rank);
  }
  return ranks;
}

NodeAgentMachine started(NodeAgentConfig config) {
  NodeAgentMachine machine(config);
  machine.start(seconds(0));
  return machine;
}

TEST(NodeAgent, WaitsForANamedRankBeforeStoppingAny) {
  auto machine = started({.ranks = 3, .max_restarts = 3, .cause_window = milliseconds(500)});

  const auto follower = machine.exited(1, {kExitFenced, 0}, seconds(10));

  EXPECT_TRUE(all_of<SignalRank>(follower).empty());
  EXPECT_EQ(only<ArmDeadline>(follower).after, milliseconds(500));

  const auto named = machine.exited(0, {kExitNoCheckpoint, 0}, seconds(10) + milliseconds(1));

  EXPECT_EQ(ranks_sent(SIGTERM, named), std::vector<int>{2});

  const auto end = machine.exited(2, {kExitFenced, 0}, seconds(10) + milliseconds(2));

  EXPECT_EQ(cause_of(end).rank, 0);
  EXPECT_EQ(only<Finish>(end).exit_code, kExitNoCheckpoint);
}

TEST(NodeAgent, StopsTheOthersUnlessTheNamedRankEnds) {
  auto machine = started({.ranks = 3});
  machine.exited(1, {kExitFenced, 0}, seconds(10));
  const auto another = machine.exited(2, {kExitFenced, 0}, seconds(10) + milliseconds(400));
  EXPECT_TRUE(another.empty()) << "the window of the first is not lengthened";

  const auto stop = machine.deadline(seconds(11));

  EXPECT_EQ(ranks_sent(SIGTERM, stop), std::vector<int>{0});
  EXPECT_EQ(only<ArmDeadline>(stop).after, seconds(15));
}

// One that goes on when it is told to end may find itself left, and end like the others; or it was stopped
// when it had nothing left to do with them, and comes through.
TEST(NodeAgent, BlamesTheRankThatEndedForNoOther) {
  for (const auto end : {ExitStatus{0, SIGTERM}, ExitStatus{0, SIGKILL}, ExitStatus{kExitFenced, 0}, kDone}) {
    auto machine = started({.ranks = 3});
    if (end.success()) machine.seen_stopped(0);
    machine.exited(1, {kExitFenced, 0}, seconds(10));
    machine.exited(2, {kExitFenced, 0}, seconds(10));
    machine.deadline(seconds(11));
    if (end.signal == SIGKILL) machine.deadline(seconds(26));

    const auto cause = cause_of(machine.exited(0, end, seconds(26)));

    EXPECT_EQ(cause.rank, 0);
    EXPECT_EQ(cause.kind, Ending::Kind::stopped);
  }
}

TEST(NodeAgent, AmongRanksAskedChoosesOneSeenStopped) {
  for (const bool is_seen : {false, true}) {
    auto machine = started({.ranks = 3});
    if (is_seen) machine.seen_stopped(2);
    machine.exited(1, {kExitFenced, 0}, seconds(10));
    machine.deadline(seconds(11));
    machine.exited(0, {0, SIGTERM}, seconds(11));

    const auto end = machine.exited(2, {0, SIGTERM}, seconds(11));

    EXPECT_EQ(cause_of(end).rank, is_seen ? 2 : 1);
  }
}

TEST(NodeAgent, DoesNotBlameARankThatMerelyEndedLate) {
  auto machine = started({.ranks = 2});
  machine.exited(1, kFailed, seconds(10));
  machine.deadline(seconds(25));

  const auto end = machine.exited(0, {0, SIGKILL}, seconds(25));

  EXPECT_EQ(cause_of(end).rank, 1);
}

TEST(NodeAgent, EndsTheJobAtUnforwardedSignals) {
  auto machine = started({.ranks = 2, .forwarded_signals = {SIGUSR2}});

  const auto stop = machine.signalled(SIGUSR1);

  EXPECT_EQ(ranks_sent(SIGTERM, stop), (std::vector<int>{0, 1}));
  machine.exited(0, {0, SIGTERM}, seconds(1));
  EXPECT_EQ(only<Finish>(machine.exited(1, {0, SIGTERM}, seconds(1))).exit_code, 128 + SIGUSR1);
}

TEST(NodeAgent, StartsTheGangAndReturnsZeroWhenAllComplete) {
  NodeAgentMachine machine({.ranks = 2});

  const auto start = only<StartGang>(machine.start(seconds(0)));
  const auto after_first = machine.exited(1, kDone, seconds(1));
  const auto after_last = machine.exited(0, kDone, seconds(2));

  EXPECT_EQ(start.generation, 0);
  EXPECT_TRUE(after_first.empty());
  EXPECT_EQ(only<Finish>(after_last).exit_code, 0);
  EXPECT_FALSE(only<EndGeneration>(after_last).cause);
}

TEST(NodeAgent, FailureAsksOthersToEndAndArmsTheDeadline) {
  auto machine = started({.ranks = 3, .term_timeout = seconds(7)});
  machine.exited(0, kDone, seconds(1));

  const auto effects = machine.exited(1, kFailed, seconds(2));

  EXPECT_EQ(ranks_sent(SIGTERM, effects), std::vector{2});
  EXPECT_EQ(ranks_sent(SIGCONT, effects), std::vector{2});
  EXPECT_EQ(only<ArmDeadline>(effects).after, seconds(7));
  EXPECT_FALSE(one_of<Finish>(effects));
}

TEST(NodeAgent, KillsWhoIgnoresTheRequestAndAbandonsSurvivors) {
  auto machine = started({.ranks = 3, .max_restarts = 5, .kill_timeout = seconds(10)});
  machine.exited(0, kFailed, seconds(1));

  const auto killing = machine.deadline(seconds(16));
  machine.exited(1, {0, SIGKILL}, seconds(16));
  const auto giving_up = machine.deadline(seconds(26));

  EXPECT_EQ(ranks_sent(SIGKILL, killing), (std::vector{1, 2}));
  EXPECT_EQ(only<ArmDeadline>(killing).after, seconds(10));
  const auto end = one_of<EndGeneration>(giving_up);
  ASSERT_TRUE(end);
  ASSERT_EQ(end->endings.size(), 3U);
  EXPECT_EQ(end->endings[1].kind, Ending::Kind::stopped);
  EXPECT_EQ(end->endings[2].kind, Ending::Kind::abandoned);
  EXPECT_EQ(only<Finish>(giving_up).exit_code, 1) << "a node with such a process is not used again";
}

TEST(NodeAgent, TellsConsequencesFromWhatItDidItself) {
  auto machine = started({.ranks = 5});
  machine.exited(3, kFailed, seconds(10));
  machine.exited(0, {7, 0}, seconds(12));
  machine.exited(1, {0, SIGTERM}, seconds(12));
  machine.exited(2, {128 + SIGTERM, 0}, seconds(12));

  const auto end = one_of<EndGeneration>(machine.exited(4, {7, 0}, seconds(12) + milliseconds(1)));

  ASSERT_TRUE(end);
  ASSERT_EQ(end->endings.size(), 5U);
  EXPECT_EQ(end->endings[0].kind, Ending::Kind::first);
  EXPECT_EQ(end->endings[1].kind, Ending::Kind::secondary);
  EXPECT_EQ(end->endings[2].kind, Ending::Kind::stopped);
  EXPECT_EQ(end->endings[3].kind, Ending::Kind::stopped);
  EXPECT_EQ(end->endings[4].kind, Ending::Kind::late);
  EXPECT_EQ(end->cause, 0U);
}

TEST(NodeAgent, OutsideKillExplainsAPeerThatEndedSooner) {
  auto machine = started({.ranks = 3});
  machine.exited(0, kFailed, seconds(10));
  machine.exited(1, {0, SIGABRT}, seconds(10));

  const auto end = machine.exited(2, {0, SIGKILL}, seconds(11));

  EXPECT_EQ(cause_of(end).rank, 2);
}

TEST(NodeAgent, RestartsAtOnceThenWithDoublingPausesUntilExhausted) {
  auto machine = started({.ranks = 1, .max_restarts = 4, .longest_backoff = seconds(3)});

  const auto first = machine.exited(0, kFailed, milliseconds(999));
  EXPECT_EQ(only<StartGang>(first).generation, 1);
  for (const auto pause : {seconds(1), seconds(2), seconds(3)}) {
    const auto effects = machine.exited(0, kFailed, seconds(1));
    ASSERT_TRUE(one_of<ArmDeadline>(effects)) << "a pause of " << pause.count() << " s";
    EXPECT_EQ(only<ArmDeadline>(effects).after, pause);
    EXPECT_EQ(machine.state(), "waiting");
    EXPECT_TRUE(one_of<StartGang>(machine.deadline(seconds(1))));
  }

  EXPECT_EQ(only<Finish>(machine.exited(0, kFailed, seconds(1))).exit_code, 1);
  EXPECT_EQ(machine.generation(), 4);
}

// Scripts that report no step; torchrun would start them again at once.
TEST(NodeAgent, RestartsALongLivedGangAtOnceEveryTime) {
  auto machine = started({.ranks = 2, .max_restarts = 10, .first_backoff = seconds(1)});

  for (int life = 1; life <= 10; ++life) {
    EXPECT_FALSE(one_of<StartGang>(machine.exited(0, kFailed, seconds(20 * life - 19))));
    // How long the others take to end is no part of its life.
    EXPECT_TRUE(one_of<StartGang>(machine.exited(1, {0, SIGTERM}, seconds(20 * life)))) << "life " << life;
  }
}

TEST(NodeAgent, ALongLifeEndsTheRowOfPauses) {
  auto machine = started({.ranks = 2, .max_restarts = 10, .first_backoff = seconds(1)});
  const auto fail = [&](nanoseconds at) {
    machine.exited(0, kFailed, at);
    return machine.exited(1, {0, SIGTERM}, at + seconds(5));
  };
  EXPECT_TRUE(one_of<StartGang>(fail(milliseconds(999))));
  EXPECT_TRUE(one_of<ArmDeadline>(fail(milliseconds(5999 + 999))))
      << "a life of 0.999 s, whatever its end took";
  machine.deadline(seconds(20));

  EXPECT_TRUE(one_of<StartGang>(fail(seconds(21)))) << "a life of 1 s";
  EXPECT_TRUE(one_of<StartGang>(fail(seconds(26)))) << "the first of a new row";
}

TEST(NodeAgent, ProgressBetweenFailuresMakesTheNextRestartImmediate) {
  auto machine = started({.ranks = 1, .max_restarts = 10});

  for (std::int64_t step = 0; step < 5; ++step) {
    machine.committed(step);
    EXPECT_TRUE(one_of<StartGang>(machine.exited(0, kFailed, seconds(1)))) << "step " << step;
  }
}

TEST(NodeAgent, StopsAtTheThirdFailureAfterTheSameStep) {
  auto machine = started({.ranks = 1, .max_restarts = 10});
  machine.committed(41);
  machine.exited(0, kFailed, seconds(1));
  machine.committed(42);
  machine.exited(0, kFailed, seconds(2));
  machine.exited(0, kFailed, seconds(3));
  machine.deadline(seconds(4));

  const auto effects = machine.exited(0, kFailed, seconds(5));

  EXPECT_EQ(only<Finish>(effects).exit_code, 1);
  EXPECT_NE(machine.verdict().find("step 42"), std::string::npos) << machine.verdict();
}

TEST(NodeAgent, RolledBackJobProgressesBeyondItsFurthestStepOnly) {
  auto machine = started({.ranks = 1, .max_restarts = 10});
  machine.committed(10);
  machine.exited(0, kFailed, seconds(1));
  machine.committed(7);
  EXPECT_TRUE(one_of<StartGang>(machine.exited(0, kFailed, seconds(1)))) << "the first without a step more";
  machine.committed(11);
  EXPECT_TRUE(one_of<StartGang>(machine.exited(0, kFailed, seconds(1)))) << "a step more";
  machine.committed(8);
  EXPECT_TRUE(one_of<StartGang>(machine.exited(0, kFailed, seconds(1))));
  machine.committed(9);

  const auto effects = machine.exited(0, kFailed, seconds(1));

  EXPECT_EQ(only<Finish>(effects).exit_code, 1);
  EXPECT_NE(machine.verdict().find("3 failures in a row after step 11"), std::string::npos)
      << machine.verdict();
}

TEST(NodeAgent, AJobThatGoesBackPausesBeforeItsRestarts) {
  auto machine = started({.ranks = 1, .max_restarts = 10, .no_progress_limit = 10});
  machine.committed(10);
  machine.exited(0, kFailed, milliseconds(1));
  machine.committed(7);
  machine.exited(0, kFailed, milliseconds(2));
  machine.committed(8);

  const auto effects = machine.exited(0, kFailed, milliseconds(3));

  EXPECT_EQ(only<ArmDeadline>(effects).after, seconds(1));
}

TEST(NodeAgent, PausesNeverExceedTheLongestHoweverLongTheFirst) {
  auto machine = started({.ranks = 1, .max_restarts = 30, .first_backoff = seconds(1'000'000)});
  machine.exited(0, kFailed, milliseconds(1));

  for (int failure = 2; failure <= 25; ++failure) {
    const auto effects = machine.exited(0, kFailed, milliseconds(failure));
    EXPECT_EQ(only<ArmDeadline>(effects).after, seconds(60)) << "failure " << failure;
    machine.deadline(milliseconds(failure));
  }
}

TEST(NodeAgent, CodesThatForbidARestartArePassedOn) {
  for (int code : {kExitTemporaryFailure, kExitNoCheckpoint}) {
    auto machine = started({.ranks = 2, .max_restarts = 3});
    machine.exited(0, kFailed, seconds(1));

    const auto effects = machine.exited(1, {code, 0}, seconds(1));

    EXPECT_EQ(only<Finish>(effects).exit_code, code);
  }
}

TEST(NodeAgent, SignalStopsTheJobAndSetsItsExitCode) {
  auto machine = started({.ranks = 2, .max_restarts = 3});

  const auto asked = machine.signalled(SIGTERM);
  const auto again = machine.signalled(SIGTERM);
  machine.exited(0, kDone, seconds(1));
  const auto ended = machine.exited(1, {0, SIGTERM}, seconds(1));

  EXPECT_EQ(ranks_sent(SIGTERM, asked), (std::vector{0, 1}));
  EXPECT_TRUE(again.empty());
  EXPECT_EQ(only<Finish>(ended).exit_code, 128 + SIGTERM);
}

TEST(NodeAgent, SavedAndStoppedJobAsksToBeRequeued) {
  auto machine = started({.ranks = 1});
  machine.signalled(SIGTERM);

  const auto effects = machine.exited(0, {kExitTemporaryFailure, 0}, seconds(1));

  EXPECT_EQ(only<Finish>(effects).exit_code, kExitTemporaryFailure);
}

TEST(NodeAgent, TheSecondInterruptKillsNow) {
  auto machine = started({.ranks = 2});

  const auto first = machine.signalled(SIGINT);
  const auto second = machine.signalled(SIGINT);

  EXPECT_EQ(ranks_sent(SIGINT, first), (std::vector{0, 1}));
  EXPECT_EQ(ranks_sent(SIGKILL, second), (std::vector{0, 1}));
}

TEST(NodeAgent, SignalDuringARestartPauseEndsTheJob) {
  auto machine = started({.ranks = 1, .max_restarts = 5});
  machine.exited(0, kFailed, milliseconds(1));
  machine.exited(0, kFailed, milliseconds(1));

  EXPECT_EQ(only<Finish>(machine.signalled(SIGHUP)).exit_code, 128 + SIGHUP);
}

TEST(NodeAgent, ForwardsUserSignalsOnlyToTheRanksThemselves) {
  auto machine = started({.ranks = 2});
  machine.exited(0, kDone, seconds(1));

  const auto sent = all_of<SignalRank>(machine.signalled(SIGUSR1));

  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(sent[0].rank, 1);
  EXPECT_FALSE(sent[0].group);
}

TEST(NodeAgent, FailedStartStopsTheRanksAlreadyStarted) {
  auto machine = started({.ranks = 3, .max_restarts = 5});

  const auto effects = machine.start_failed({1, 2});
  const auto ended = machine.exited(0, {0, SIGTERM}, seconds(1));

  EXPECT_EQ(ranks_sent(SIGTERM, effects), std::vector{0});
  EXPECT_EQ(only<Finish>(ended).exit_code, 1);
}

}  // namespace
}  // namespace troupe::actors
