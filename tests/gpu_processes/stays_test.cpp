// Jobs on GPUs whose ranks are lost while the others stay.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "gpu/collective/nccl/options.hpp"
#include "tests/processes/lost_ranks.hpp"

namespace troupe {
namespace {

using testing::HasSubstr;
using testing::Not;

enum class Mend { restart, spare, fewer };

constexpr int kSteps = 12;
constexpr std::size_t kBlowAfter = 5;

class OnGpus : public tests::LostRanks {
 protected:
  OnGpus() {
    ::setenv("TROUPE_NCCL_LIBRARY", EMULATED_NCCL, 1);
    patience_ = std::chrono::seconds(240);
  }

  static tests::GptJob job_with(Mend mend, const std::string& strategy) {
    const std::vector<std::string> launch[] = {
        {"--max-restarts", "1"}, {"--spares", "1"}, {"--nproc-per-node", "2:3"}};
    return {3, kSteps, launch[static_cast<int>(mend)], {"--strategy", strategy}};
  }
};

class LostRanksOnGpus : public OnGpus, public testing::WithParamInterface<std::string> {};

TEST_P(LostRanksOnGpus, LeaveOthersInTheirProcessesWithTheSameBits) {
  constexpr int kSaveEvery = 4;
  int lost = 0;
  for (const auto mend : {Mend::restart, Mend::spare, Mend::fewer}) {
    for (const int signal : {SIGKILL, SIGSTOP}) {
      const auto name = fmt::format("{}-{}-{}", GetParam(), static_cast<int>(mend), signal);
      SCOPED_TRACE(name);

      const auto run = lose(job_with(mend, GetParam()), name, {{kBlowAfter, {lost}, signal}}, kSaveEvery);

      const auto resumed = HasSubstr("resumed from the memory of 2 of");
      if (GetParam() == "ddp") {
        EXPECT_THAT(run.result.output, resumed);
        EXPECT_EQ(steps_taken_again(name), 0) << run.result.output;
      } else {
        EXPECT_THAT(run.result.output, Not(resumed));
      }
      expect_bits(name, kSteps);
      lost = (lost + 1) % 3;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, LostRanksOnGpus, testing::Values("ddp", "zero1", "zero3"),
                         [](const auto& each) { return each.param; });

/// What else a job may be in which each part of the state is on two ranks.
class ReplicasOnGpus : public OnGpus {
 protected:
  void expect_nothing_taken_again(const tests::GptJob& job, const std::string& name) {
    constexpr int kNever = 0;

    const auto run = lose(job, name, {{kBlowAfter, {1}}}, kNever);

    EXPECT_THAT(run.result.output, HasSubstr(fmt::format("resumed from the memory of {} of", job.ranks - 1)));
    EXPECT_EQ(steps_taken_again(name), 0) << run.result.output;
    expect_bits(name, kSteps);
  }
};

TEST_F(ReplicasOnGpus, OfShardsReplaceThoseOfTheLostRank) {
  auto job = job_with(Mend::spare, "hsdp");
  job.ranks = 4;
  job.trainer_options.insert(job.trainer_options.end(), {"--optimizer-instances", "2"});

  expect_nothing_taken_again(job, "shards");
}

TEST_F(ReplicasOnGpus, AreDealtAnewOverFewerRanks) {
  auto job = job_with(Mend::fewer, "zero1");
  job.ranks = 4;
  job.launch_options = {"--nproc-per-node", "3:4"};
  job.trainer_options.insert(job.trainer_options.end(), {"--optimizer-instances", "2", "--keep-instances"});

  expect_nothing_taken_again(job, "anew");
}

TEST_F(ReplicasOnGpus, AreCopiedWhereMemoryIsRegistered) {
  auto job = job_with(Mend::spare, "ddp");
  job.trainer_options.emplace_back("--register-memory");

  expect_nothing_taken_again(job, "registered");
}

class StuckOnGpus : public OnGpus {
 protected:
  static constexpr int kStuck = 2;  // a slot

  StuckOnGpus() { ::setenv("TROUPE_EMULATED_NCCL_STUCK", std::to_string(kStuck).c_str(), 1); }
  ~StuckOnGpus() override { ::unsetenv("TROUPE_EMULATED_NCCL_STUCK"); }
};

TEST_F(StuckOnGpus, EndTheirProcessAndTheJobGoesOn) {
  auto job = job_with(Mend::spare, "ddp");
  job.launch_options = {"--spares", "2"};
  constexpr int kNoSignal = 0;

  const auto run = lose(job, "stuck", {{kBlowAfter, {1}}, {kBlowAfter, {kStuck}, kNoSignal}});

  EXPECT_THAT(run.result.output, HasSubstr("ncclCommAbort did not return within"));
  EXPECT_THAT(run.result.output, HasSubstr(fmt::format("exit code {}", gpu::kAbortStuckExitCode)));
  expect_bits("stuck", kSteps);
}

/// What the threads of a process have had of processors.
std::chrono::nanoseconds processor_time(int pid) {
  clockid_t clock = 0;
  timespec time{};
  if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &time) != 0) return {};
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// Linux 6.18 lets everyone on the machine wait for seconds where ranks yield in a loop meanwhile.
TEST_F(OnGpus, ARankThatWaitsForAnotherLeavesTheProcessor) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kPause = std::chrono::milliseconds(1000);
  const auto id = fmt::format("waits-{}", ::getpid());
  const auto output = folder_.path("waits");
  const tests::GptJob job{2, kSteps, {"--rdzv-id", id}, {}};
  int stopped = 0;
  Clock::time_point from;
  std::optional<std::chrono::nanoseconds> before;
  std::optional<std::chrono::nanoseconds> taken;
  const auto during = [&] {
    if (stopped == 0 && tests::read_record(output).losses.size() >= kBlowAfter) {
      stopped = tests::process_of_rank(id, 0);
      ASSERT_EQ(::kill(stopped, SIGSTOP), 0);
      from = Clock::now() + kPause / 5;  // Rank 1 ends what it can do alone.
    }
    if (stopped == 0 || taken || Clock::now() < from) return;
    const auto now = processor_time(tests::process_of_rank(id, 1));
    if (!before) before = now;
    if (Clock::now() < from + kPause) return;
    taken = now - *before;
    ASSERT_EQ(::kill(stopped, SIGCONT), 0);
  };

  const auto result = tests::run_command(tests::gpt_command(job, text_, output), patience_, during);

  EXPECT_EQ(result.exit_code, 0) << result.output;
  ASSERT_TRUE(taken);
  EXPECT_LT(*taken, kPause / 2);
}

}  // namespace
}  // namespace troupe
