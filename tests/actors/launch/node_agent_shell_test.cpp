#include "actors/launch/node_agent_shell.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/world/random.hpp"
#include "actors/world/simulation/event_loop.hpp"
#include "actors/world/simulation/processes.hpp"
#include "core/errors.hpp"
#include "tests/actors/launch/simulated_node.hpp"

namespace troupe::actors {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

using node_tests::fails_after;
using node_tests::kCompletes;
using node_tests::kTrains;
using node_tests::Node;

TEST(NodeAgentShell, ResumesAStoppedRankOnceOthersEndedWell) {
  Node node({.ranks = 3}, [](int, int rank) {
    return rank == 1 ? SimulatedProgram{.is_stopped = true}
                     : SimulatedProgram{.lifetime = seconds(20 * rank + 1)};
  });

  node.run();

  EXPECT_EQ(node.exit_code_, 0);
  EXPECT_THAT(node.said_, ::testing::ElementsAre("rank 1 goes on"));
  EXPECT_EQ(node.now(), seconds(41)) << "rank 2 works for longer, and is left alone";
  EXPECT_TRUE(node.is_quiet());
}

TEST(NodeAgentShell, LeavesStoppedRanksToTheirPeersWhileAllRun) {
  Node node({.ranks = 2}, [](int, int rank) {
    return rank == 1 ? SimulatedProgram{.is_stopped = true} : fails_after(seconds(100), {kExitFenced, 0});
  });

  node.run();

  EXPECT_EQ(node.exit_code_, 1);
  EXPECT_THAT(node.said_, ::testing::Not(::testing::Contains("rank 1 goes on")));
}

TEST(NodeAgentShell, ReplacesOneProcessWhileTheOthersStay) {
  Node node({.ranks = 3, .max_restarts = 1, .in_place = true}, [](int generation, int rank) {
    return generation == 0 && rank == 1 ? fails_after(seconds(5)) : SimulatedProgram{.lifetime = seconds(20)};
  });
  node.standing_ = {true, true};

  node.run();

  EXPECT_EQ(node.exit_code_, 0);
  EXPECT_EQ(node.starts(), 4);
  EXPECT_EQ(node.began_.size(), 1u);
  EXPECT_THAT(node.said_, testing::ElementsAre("rank 1 is replaced"));
}

TEST(NodeAgentShell, TellsRanksFormingAnEpochOfTheJobsStop) {
  for (const bool is_formed : {false, true}) {
    Node node({.ranks = 3, .max_restarts = 1, .in_place = true}, [](int generation, int rank) {
      return generation == 0 && rank == 1 ? fails_after(seconds(5)) : kTrains;
    });
    node.standing_ = {false, true};
    node.call_at(seconds(6), [&] { node.standing_.is_formed = is_formed; });
    node.signal_at(seconds(7), SIGTERM);

    node.run();

    EXPECT_EQ(node.exit_code_, 128 + SIGTERM);
    const auto said = testing::Contains("stopped while an epoch forms");
    if (is_formed) {
      EXPECT_THAT(node.said_, testing::Not(said));
    } else {
      EXPECT_THAT(node.said_, said);
    }
  }
}

TEST(NodeAgentShell, ReportsTheFailureIfTheRankCannotBeRestarted) {
  Node node({.ranks = 3, .max_restarts = 1, .in_place = true},
            [](int generation, int rank) -> core::Result<SimulatedProgram> {
              if (generation == 1) return core::fail(core::Errc::io, "no such program");
              return rank == 1 ? fails_after(seconds(5)) : kTrains;
            });
  node.standing_ = {true, true};

  node.run();

  EXPECT_EQ(node.exit_code_, 1);
  EXPECT_THAT(node.said_,
              testing::ElementsAre("rank 1 is replaced", "rank 1 failed first: exit code 1, 0 signals sent",
                                   "rank 1 not started: no such program"));
}

TEST(NodeAgentShell, RunsEveryRankToItsEndAndReturnsZero) {
  Node node({.ranks = 3}, [](int, int rank) {
    return SimulatedProgram{.lifetime = seconds(10 + rank), .errors = rank == 1 ? "hello" : ""};
  });

  node.run();

  EXPECT_EQ(node.exit_code_, 0);
  EXPECT_EQ(node.now(), seconds(12));
  EXPECT_EQ(node.starts(), 3);
  EXPECT_EQ(node.closed_, 6) << "both streams of every rank";
  EXPECT_EQ(node.pids_, (std::map<int, std::int64_t>{{0, 1}, {1, 2}, {2, 3}}));
  EXPECT_THAT(node.said_, testing::ElementsAre("rank 1 writes hello"));
}

TEST(NodeAgentShell, ReportsTheFirstFailureBeforeEndingTheOthers) {
  Node node({.ranks = 3}, [](int, int rank) {
    return rank == 1 ? fails_after(seconds(5), {7, 0}) : kTrains;
  });

  node.run();

  EXPECT_THAT(node.said_, testing::ElementsAre("rank 1 failed first: exit code 7, 0 signals sent"));
  EXPECT_EQ(node.exit_code_, 1);
  EXPECT_EQ(node.now(), seconds(5));
  EXPECT_THAT(node.kinds(),
              testing::ElementsAre(Ending::Kind::stopped, Ending::Kind::first, Ending::Kind::stopped));
  EXPECT_TRUE(node.is_quiet()) << "no deadline is armed any more";
}

TEST(NodeAgentShell, KillsARankThatIgnoresTheRequestInTime) {
  SimulatedProgram deaf;
  deaf.obeys_after = std::nullopt;
  Node node({.ranks = 2, .term_timeout = seconds(15)},
            [&](int, int rank) { return rank == 0 ? fails_after(seconds(5)) : deaf; });

  node.run();

  EXPECT_EQ(node.now(), seconds(20));
  ASSERT_EQ(node.endings_.size(), 2U);
  EXPECT_EQ(node.endings_[1].status, (ExitStatus{0, SIGKILL}));
}

TEST(NodeAgentShell, AbandonsAnUnkillableRankAndStartsNoMore) {
  SimulatedProgram stuck;
  stuck.is_stuck = true;
  stuck.obeys_after = std::nullopt;
  Node node({.ranks = 2, .max_restarts = 5, .term_timeout = seconds(15), .kill_timeout = seconds(10)},
            [&](int, int rank) { return rank == 0 ? fails_after(seconds(5)) : stuck; });

  node.run();

  EXPECT_EQ(node.now(), seconds(30));
  EXPECT_THAT(node.kinds(), testing::ElementsAre(Ending::Kind::first, Ending::Kind::abandoned));
  EXPECT_EQ(node.exit_code_, 1);
  EXPECT_EQ(node.starts(), 2);
}

TEST(NodeAgentShell, StartsAgainAtOnceThenAfterPausesThatDouble) {
  Node node({.ranks = 1, .max_restarts = 4, .longest_backoff = seconds(3)},
            [](int generation, int) { return generation < 4 ? fails_after(milliseconds(100)) : kCompletes; });

  node.run();

  EXPECT_EQ(node.exit_code_, 0);
  EXPECT_THAT(node.began_, testing::ElementsAre(milliseconds(0), milliseconds(100), milliseconds(1200),
                                                milliseconds(3300), milliseconds(6400)));
}

TEST(NodeAgentShell, AsksForCommittedStepsBeforeJudgingAFailure) {
  Node node({.ranks = 1, .max_restarts = 10, .no_progress_limit = 3},
            [](int, int) { return fails_after(milliseconds(100)); });
  node.step_ = 42;

  node.run();

  EXPECT_EQ(node.starts(), 3);
  EXPECT_EQ(node.agent().verdict(), "no progress: 3 failures in a row after step 42");
}

TEST(NodeAgentShell, FailedStartEndsTheRanksAlreadyStarted) {
  Node node({.ranks = 3, .max_restarts = 5}, [](int, int rank) -> core::Result<SimulatedProgram> {
    if (rank == 1) return core::fail(core::Errc::not_found, "cannot execute trainer");
    return kTrains;
  });

  node.run();

  EXPECT_THAT(node.said_, testing::ElementsAre("rank 1 not started: cannot execute trainer"));
  EXPECT_EQ(node.exit_code_, 1);
  EXPECT_EQ(node.starts(), 1);
  EXPECT_EQ(node.running(), 0);
}

TEST(NodeAgentShell, AGenerationThatCannotBeginStartsNothing) {
  Node node({.ranks = 3}, [](int, int) { return kTrains; });
  node.cannot_begin_ = true;

  node.run();

  EXPECT_THAT(node.said_, testing::ElementsAre("rank 0 not started: no port is free"));
  EXPECT_EQ(node.exit_code_, 1);
  EXPECT_EQ(node.starts(), 0);
}

TEST(NodeAgentShell, LauncherSignalStopsRanksAndSetsTheExitCode) {
  SimulatedProgram slow;
  slow.obeys_after = seconds(4);
  Node node({.ranks = 2, .max_restarts = 5, .term_timeout = seconds(15)}, [&](int, int) { return slow; });
  node.signal_at(seconds(60), SIGTERM);

  node.run();

  EXPECT_EQ(node.exit_code_, 128 + SIGTERM);
  EXPECT_EQ(node.now(), seconds(64));
}

TEST(NodeAgentShell, SignalDuringARestartPauseEndsTheJob) {
  Node node({.ranks = 1, .max_restarts = 5}, [](int, int) { return fails_after(milliseconds(100)); });
  node.signal_at(milliseconds(700), SIGINT);

  node.run();

  EXPECT_EQ(node.exit_code_, 128 + SIGINT);
  EXPECT_EQ(node.now(), milliseconds(700));
  EXPECT_EQ(node.starts(), 2);
}

TEST(NodeAgentShell, ClearsAwayWhatAGenerationLeftBehind) {
  SimulatedProgram daemon = fails_after(seconds(2));
  daemon.leaves_behind = 3;
  Node node({.ranks = 1, .max_restarts = 1}, [&](int, int) { return daemon; });

  node.run();

  EXPECT_EQ(node.cleared_, 6);
  EXPECT_EQ(node.running(), 0);
}

/// Processes that end when they like, obey or not, hang in the kernel, leave others behind or never start,
/// and signals at any time.
void run_random_node(std::uint64_t seed) {
  RandomStream random(seed, "node agent shell", "processes");
  const auto below = [&](std::uint32_t bound) { return static_cast<int>(random.below(bound)); };
  const int ranks = 1 + below(5);
  Node node(
      {.ranks = ranks, .max_restarts = below(4), .no_progress_limit = 1 + below(3)},
      [&](int, int) -> core::Result<SimulatedProgram> {
        if (below(40) == 0) return core::fail(core::Errc::not_found, "cannot execute trainer");
        SimulatedProgram program = fails_after(milliseconds(below(5000)), {below(3), 0});
        if (below(4) == 0) program.ending = {0, below(2) == 0 ? SIGKILL : SIGSEGV};
        program.obeys_after = milliseconds(below(20'000));
        if (below(5) == 0) program.lifetime.reset();
        if (below(5) == 0) program.obeys_after.reset();
        program.is_stuck = below(20) == 0;
        program.leaves_behind = below(3);
        return program;
      },
      seed);
  const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};
  // A rank that never ends by itself needs one; some come long before.
  node.signal_at(seconds(300), SIGTERM);
  for (int i = below(3); i > 0; --i) node.signal_at(milliseconds(below(60'000)), signals[below(4)]);

  node.run();

  EXPECT_LE(node.now(), seconds(300 + 15 + 10));
  EXPECT_EQ(node.running(), node.abandoned_);
  EXPECT_EQ(node.agent().state(), "finished");
}

TEST(NodeAgentShell, EndsInTimeAndCleanlyWhateverTheProcessesDo) {
  for (std::uint64_t seed = 1; seed <= 2000 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    run_random_node(seed);
  }
}

}  // namespace
}  // namespace troupe::actors
