#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <string>
#include <vector>

#include "tests/processes/lost_ranks.hpp"

namespace troupe {
namespace {

using testing::HasSubstr;
using testing::Not;
using tests::GptJob;

class SpareProcesses : public tests::LostRanks {
 protected:
  static GptJob job_with(int spares, int max_restarts = 0, int steps = 60) {
    return {
        4, steps, {"--spares", std::to_string(spares), "--max-restarts", std::to_string(max_restarts)}, {}};
  }
};

TEST_F(SpareProcesses, TakeAnyLostRankWhileOthersKeepTheirProcesses) {
  for (int lost = 0; lost < 4; ++lost) {
    const auto name = fmt::format("spare{}", lost);
    SCOPED_TRACE(name);

    const auto run = lose(job_with(1), name, {{12, {lost}}});

    EXPECT_THAT(run.result.output, HasSubstr(fmt::format("spare 4 is rank {} now, the others stay", lost)));
    ASSERT_EQ(run.before.size(), 5u);
    expect_bits(name);
  }
}

TEST_F(SpareProcesses, KeepTheBitsInEveryStrategyAndBackEnd) {
  int lost = 0;
  for (const std::string strategy : {"ddp", "zero2", "zero3", "hsdp", "hfsdp"}) {
    SCOPED_TRACE(strategy);
    auto job = job_with(1);
    job.trainer_options = {"--strategy", strategy, "--collectives", lost % 2 == 0 ? "tcp" : "shared_memory"};
    if (strategy.starts_with("h"))
      job.trainer_options.insert(job.trainer_options.end(), {"--optimizer-instances", "2"});

    lose(job, strategy, {{12, {lost}}});

    expect_bits(strategy);
    lost = (lost + 1) % 4;
  }
}

TEST_F(SpareProcesses, TakeSeveralRanksThatAreLostAtOnce) {
  for (const auto& lost : {std::vector<int>{1, 2}, std::vector<int>{0, 3}, std::vector<int>{0, 1, 2, 3}}) {
    const auto name = fmt::format("several{}", lost.size() + static_cast<std::size_t>(lost[0]));
    SCOPED_TRACE(name);

    const auto run = lose(job_with(4), name, {{12, lost}});

    EXPECT_THAT(run.result.output, HasSubstr(fmt::format("spare {} is rank", 3 + lost.size())));
    EXPECT_THAT(run.result.output, Not(HasSubstr("restart 1 of")));
    expect_bits(name);
  }
}

TEST_F(SpareProcesses, AreStartedAnewWhileRestartsAreLeft) {
  const auto run = lose(job_with(1, 2, 300), "anew", {{12, {1}}, {150, {4}}});

  EXPECT_THAT(run.result.output, HasSubstr("spare 4 is rank 1 now"));
  EXPECT_THAT(run.result.output, HasSubstr("spare 1 is rank 1 now"));
  expect_bits("anew", 300);
}

TEST_F(SpareProcesses, ThatAreLostHarmNobody) {
  const auto run = lose(job_with(1, 1, 300), "idle", {{12, {4}}, {150, {2}}});

  EXPECT_THAT(run.result.output,
              HasSubstr("spare 4 ended: SIGKILL (signal 9); another is started: restart 1 of 1"));
  EXPECT_THAT(run.result.output, HasSubstr("spare 4 is rank 2 now"));
  expect_bits("idle", 300);
}

TEST_F(SpareProcesses, ThatAreStoppedLeaveTheirRankToARestart) {
  const auto run = lose(job_with(1, 1), "stopped", {{12, {4}, SIGSTOP}, {20, {2}}});

  EXPECT_THAT(run.result.output, HasSubstr("spare 4 is rank 2 now"));
  EXPECT_THAT(run.result.output, HasSubstr("rank 2 is started again, the others stay: restart 1 of 1"));
  expect_bits("stopped");
}

TEST(SparesOfOtherPrograms, EndByThemselvesAndHarmNobody) {
  const tests::ScratchFolder folder;
  const auto result =
      tests::run_command({TROUPE_BINARY, "launch", "--nproc-per-node", "2", "--spares", "1", "--", "sh", "-c",
                          "echo rank=$RANK; test $RANK != spare || exit 3; sleep 0.3"},
                         std::chrono::seconds(30));

  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("[spare 2] rank=spare"));
  EXPECT_THAT(result.output,
              HasSubstr("spare 2 ended: exit code 3; it never stood by, so no other is started"));
}

}  // namespace
}  // namespace troupe
