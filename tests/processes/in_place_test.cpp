#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/processes/gpt_job.hpp"

namespace troupe {
namespace {

using tests::GptJob;

using Pids = std::map<int, int>;  // by rank

int parent_of(int pid) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("PPid:")) return std::stoi(line.substr(5));
  }
  return 0;
}

/// A job in which a rank is lost while the others stay.
class InPlace : public testing::Test {
 protected:
  InPlace() : text_(tests::write_sample_text(folder_)) {}

  struct Run {
    tests::CommandResult result;
    bool hit = false;
    Pids before;  ///< when the signal was sent
    Pids after;   ///< when another process had taken the rank's place
  };

  /// What is done to the job, once it has recorded this many steps.
  struct Blow {
    std::vector<int> ranks;
    std::size_t steps = 12;
    int signal = SIGKILL;
  };

  /// Strikes blow after blow, and looks after the last one who is there once its ranks have new processes.
  Run lose(const GptJob& job, const std::string& name, std::vector<Blow> blows) {
    const auto id = fmt::format("{}-{}", name, getpid());
    const auto output = folder_.path(name);
    auto given = job;
    given.launch_options.insert(given.launch_options.end(), {"--rdzv-id", id, "--restart-backoff", "0"});
    Run run;
    const auto all = [&] {
      Pids pids;
      for (int each = 0; each < job.ranks; ++each) pids[each] = tests::process_of_rank(id, each);
      return pids;
    };
    std::size_t next = 0;
    const auto during = [&] {
      if (next < blows.size()) {
        const auto& blow = blows[next];
        if (tests::read_record(output).losses.size() < blow.steps) return;
        run.before = all();
        run.hit = true;
        for (const int rank : blow.ranks) run.hit &= kill(run.before[rank], blow.signal) == 0;
        ++next;
      } else if (run.after.empty()) {
        for (const int rank : blows.back().ranks) {
          const int other = tests::process_of_rank(id, rank);
          if (other == 0 || other == run.before[rank]) return;
        }
        run.after = all();
      }
    };
    run.result =
        tests::run_command(tests::gpt_command(given, text_, output), std::chrono::seconds(60), during);
    EXPECT_TRUE(run.hit);
    EXPECT_TRUE(tests::processes_with("TORCHELASTIC_RUN_ID=" + id).empty());
    EXPECT_TRUE(tests::segments_with(id).empty());
    return run;
  }

  Run lose(const GptJob& job, const std::string& name, int rank, int signal = SIGKILL) {
    return lose(job, name, {{.ranks = {rank}, .signal = signal}});
  }

  GptJob job_with_checkpoints(int steps, const std::string& name) const {
    return {4,
            steps,
            {"--max-restarts", "1"},
            {"--checkpoints", folder_.path(name + "-checkpoints"), "--save-every", "5"}};
  }

  void expect_others_stayed(const Run& run, int rank) {
    EXPECT_EQ(run.result.exit_code, 0) << run.result.output;
    EXPECT_NE(run.result.output.find(fmt::format("rank {} is started again, the others stay", rank)),
              std::string::npos)
        << run.result.output;
    ASSERT_FALSE(run.after.empty()) << run.result.output;
    for (const auto& [each, pid] : run.before) {
      if (each == rank) {
        EXPECT_NE(run.after.at(each), pid);
      } else {
        EXPECT_EQ(run.after.at(each), pid) << "rank " << each << "\n" << run.result.output;
      }
    }
  }

  void expect_losses_of(const std::string& expected, const std::string& name) {
    tests::expect_same_steps(folder_.path(name), folder_.path(expected));
  }

  tests::ScratchFolder folder_;
  std::string text_;
};

TEST_F(InPlace, TheOthersStayWhicheverRankIsKilled) {
  tests::run_gpt({4, 60, {}, {}}, text_, folder_.path("undisturbed"));
  for (int rank = 0; rank < 4; ++rank) {
    const auto name = fmt::format("kill{}", rank);
    SCOPED_TRACE(name);

    const auto run = lose(job_with_checkpoints(60, name), name, rank);

    expect_others_stayed(run, rank);
    expect_losses_of("undisturbed", name);
  }
}

TEST_F(InPlace, EveryStrategyOverEitherBackEndKeepsItsBits) {
  tests::run_gpt({4, 40, {}, {}}, text_, folder_.path("undisturbed"));
  int rank = 0;
  for (const std::string strategy : {"ddp", "zero2", "zero3", "hsdp", "hfsdp"}) {
    const auto name = "lost-" + strategy;
    SCOPED_TRACE(name);
    auto job = job_with_checkpoints(40, name);
    job.trainer_options.insert(job.trainer_options.end(), {"--strategy", strategy, "--collectives",
                                                           rank % 2 == 0 ? "shared_memory" : "tcp"});
    if (strategy.starts_with("h"))
      job.trainer_options.insert(job.trainer_options.end(), {"--optimizer-instances", "2"});

    const auto run = lose(job, name, rank, rank % 2 == 0 ? SIGKILL : SIGSEGV);

    expect_others_stayed(run, rank);
    expect_losses_of("undisturbed", name);
    rank = (rank + 1) % 4;
  }
}

TEST_F(InPlace, ARankThatIsStoppedIsKilledAndReplaced) {
  tests::run_gpt({4, 40, {}, {}}, text_, folder_.path("undisturbed"));

  const auto run = lose(job_with_checkpoints(40, "stopped"), "stopped", 0, SIGSTOP);

  expect_others_stayed(run, 0);
  EXPECT_NE(run.result.output.find("it was stopped (SIGSTOP, a debugger), or hung"), std::string::npos)
      << run.result.output;
  expect_losses_of("undisturbed", "stopped");
}

TEST_F(InPlace, ALossAfterALossIsMendedToo) {
  tests::run_gpt({4, 60, {}, {}}, text_, folder_.path("undisturbed"));
  auto job = job_with_checkpoints(60, "again");
  job.launch_options = {"--max-restarts", "2"};

  const auto run = lose(job, "again", {{.ranks = {1}}, {.ranks = {0}, .steps = 40}});

  expect_others_stayed(run, 0);
  EXPECT_NE(run.result.output.find("rank 1 is started again, the others stay"), std::string::npos)
      << run.result.output;
  expect_losses_of("undisturbed", "again");
}

TEST_F(InPlace, TwoLossesAtOnceAreOneRestartOfAll) {
  tests::run_gpt({4, 40, {}, {}}, text_, folder_.path("undisturbed"));

  const auto run = lose(job_with_checkpoints(40, "two"), "two", {{.ranks = {1, 2}}});

  EXPECT_EQ(run.result.exit_code, 0) << run.result.output;
  EXPECT_NE(run.result.output.find("restart 1 of 1"), std::string::npos) << run.result.output;
  expect_losses_of("undisturbed", "two");
}

TEST_F(InPlace, AJobThatIsStoppedMeanwhileEndsAtOnce) {
  auto job = job_with_checkpoints(100'000, "ended");
  const auto id = fmt::format("ended-{}", getpid());
  job.launch_options.insert(job.launch_options.end(), {"--rdzv-id", id});
  std::optional<std::chrono::steady_clock::time_point> stopped;
  const auto command = tests::gpt_command(job, text_, folder_.path("ended"));
  const auto during = [&] {
    if (stopped || tests::read_record(folder_.path("ended")).losses.size() < 12) return;
    const int lost = tests::process_of_rank(id, 1);
    const int launcher = parent_of(lost);
    stopped = std::chrono::steady_clock::now();
    EXPECT_EQ(kill(lost, SIGKILL), 0);
    while (tests::process_of_rank(id, 1) == lost) continue;
    EXPECT_EQ(kill(launcher, SIGTERM), 0);
  };

  const auto result = tests::run_command(command, std::chrono::seconds(60), during);

  ASSERT_TRUE(stopped);
  EXPECT_THAT(result.exit_code, testing::AnyOf(128 + SIGTERM, 75)) << result.output;
  EXPECT_LT(std::chrono::steady_clock::now() - *stopped, std::chrono::seconds(10)) << result.output;
}

TEST_F(InPlace, StateComesFromLocalCopiesWhereTheyAreNewer) {
  tests::run_gpt({4, 40, {}, {}}, text_, folder_.path("undisturbed"));
  auto job = job_with_checkpoints(40, "local");
  // Nobody has a lost rank's optimizer states in memory.
  job.trainer_options.insert(job.trainer_options.end(),
                             {"--strategy", "zero1", "--local-checkpoints", folder_.path("copies"),
                              "--local-every", "1", "--replication-factor", "2", "--replication-jump", "2"});

  const auto run = lose(job, "local", 3);

  expect_others_stayed(run, 3);
  expect_losses_of("undisturbed", "local");
}

TEST_F(InPlace, AllAreStartedAnewWhereThatIsAskedFor) {
  auto job = job_with_checkpoints(40, "gang");
  job.launch_options.insert(job.launch_options.end(), {"--recovery", "restart"});

  const auto run = lose(job, "gang", 1);

  EXPECT_EQ(run.result.exit_code, 0) << run.result.output;
  EXPECT_EQ(run.result.output.find("the others stay"), std::string::npos) << run.result.output;
  ASSERT_FALSE(run.after.empty());
  for (const auto& [rank, pid] : run.before) EXPECT_NE(run.after.at(rank), pid) << rank;
}

}  // namespace
}  // namespace troupe
