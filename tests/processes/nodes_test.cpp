// Jobs of several launchers, each with its part of the ranks, in which processes are lost while the others
// stay.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <vector>

#include "tests/processes/lost_ranks.hpp"

namespace troupe {
namespace {

using testing::HasSubstr;
using testing::Not;
using tests::GptJob;

/// Ranks are lost once the launchers have told each other that all would stay, which takes some 100 ms.
class NodesInPlace : public tests::LostRanks {
 protected:
  static GptJob job_with(std::vector<std::string> launch_options, int steps = 60) {
    return {.ranks = 4, .steps = steps, .launch_options = std::move(launch_options), .nodes = 2};
  }
};

TEST_F(NodesInPlace, ProcessesOfAllNodesStayWhicheverRankIsKilled) {
  for (int lost = 0; lost < 4; ++lost) {
    const auto name = fmt::format("rank{}", lost);
    SCOPED_TRACE(name);

    const auto run = lose(job_with({"--max-restarts", "1"}), name, {{30, {lost}}});

    EXPECT_THAT(run.result.output, HasSubstr(fmt::format("rank {} is started again, the others stay", lost)));
    EXPECT_THAT(run.result.output, Not(HasSubstr("stopping the others")));
    ASSERT_EQ(run.before.size(), 4u);
    expect_bits(name);
  }
}

TEST_F(NodesInPlace, StrategiesGoOnWithTheSameBits) {
  int lost = 0;
  for (const std::string strategy : {"ddp", "zero3", "hfsdp"}) {
    SCOPED_TRACE(strategy);
    auto job = job_with({"--max-restarts", "1"});
    job.trainer_options = {"--strategy", strategy, "--collectives", lost % 2 == 0 ? "tcp" : "automatic"};
    if (strategy.starts_with("h"))
      job.trainer_options.insert(job.trainer_options.end(), {"--optimizer-instances", "2"});

    lose(job, strategy, {{30, {lost}, lost % 2 == 0 ? SIGSEGV : SIGKILL}});

    expect_bits(strategy);
    lost = (lost + 1) % 4;
  }
}

TEST_F(NodesInPlace, SparesOfAnyNodeTakeLostRanks) {
  // Slots 0, 1 and the spare 2 on one node, 3, 4 and 5 on the other.
  const auto run = lose(job_with({"--spares", "1"}, 300), "spares", {{60, {0}}, {150, {1}}});

  EXPECT_THAT(run.result.output, HasSubstr("spare 2 is rank 0 now"));
  EXPECT_THAT(run.result.output, HasSubstr("spare 5 is rank 1 now"));
  ASSERT_EQ(run.before.size(), 6u);
  expect_bits("spares", 300);
}

TEST_F(NodesInPlace, RankZeroMayMoveNodesAndBeLostThere) {
  const auto run = lose(job_with({"--nproc-per-node", "1:2"}, 300), "fewer", {{60, {0}}, {100, {1}}});

  EXPECT_THAT(run.result.output,
              HasSubstr("the job goes on with 3 ranks: those after rank 0 are one less now"));
  EXPECT_THAT(run.result.output, HasSubstr("the job goes on with 2 ranks"));
  expect_bits("fewer", 300);
}

TEST_F(NodesInPlace, ARankThatIsStoppedIsKilledAndReplaced) {
  const auto run = lose(job_with({"--max-restarts", "1"}), "stopped", {{30, {3}, SIGSTOP}});

  EXPECT_THAT(run.result.output, HasSubstr("rank 3 is started again"));
  expect_bits("stopped");
}

TEST_F(NodesInPlace, LostNodeIsDoneWithoutAndTakenBack) {
  const auto job = job_with({"--nnodes", "1:2"}, 300);
  const auto run = lose(job, "node", {{.steps = 60, .slots = {2, 3}, .launcher_of = 1}});

  EXPECT_THAT(run.result.output, HasSubstr("the job goes on with 2 ranks, without ranks 2, 3"));
  EXPECT_THAT(run.result.output, HasSubstr("the job goes on with 4 ranks, 2 more than before"));
  expect_bits("node", 300);
}

TEST_F(NodesInPlace, SpareOfAnotherNodeTakesALostNodesRank) {
  const auto job = job_with({"--spares", "2"}, 300);
  const auto run = lose(job, "taken", {{.steps = 60, .slots = {4, 5, 6, 7}, .launcher_of = 1}});

  EXPECT_THAT(run.result.output, HasSubstr("spare 2 is rank 2 now"));
  EXPECT_THAT(run.result.output, HasSubstr("spare 3 is rank 3 now"));
  expect_bits("taken", 300);
}

TEST_F(NodesInPlace, NodeZerosSuccessorContinuesByJournalWithOthersProcesses) {
  const auto journal = folder_.path("journal");
  const auto job = job_with({"--journal", journal, "--max-restarts", "2"});
  const auto run = lose(job, "journal-run", {{.steps = 30, .slots = {0, 1}, .launcher_of = 0}});

  EXPECT_THAT(run.result.output,
              HasSubstr("the launcher of node 0 was lost in generation 0; its job goes on here"));
  EXPECT_THAT(run.result.output, HasSubstr("rank 1 is started again, the others stay: restart 2 of 2"));
  EXPECT_FALSE(std::filesystem::exists(journal));
  expect_bits("journal-run");
}

}  // namespace
}  // namespace troupe
