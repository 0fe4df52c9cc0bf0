#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "core/random.hpp"
#include "tests/processes/gpt_job.hpp"

namespace troupe {
namespace {

using tests::GptJob;
using tests::run_and_signal;

class Failures : public testing::Test {
 protected:
  Failures() : text_(tests::write_sample_text(folder_)) {}

  static std::string unique_id(const std::string& name) { return fmt::format("{}-{}", name, getpid()); }

  void expect_nothing_left(const std::string& id) {
    EXPECT_TRUE(tests::processes_with("TORCHELASTIC_RUN_ID=" + id).empty());
    EXPECT_TRUE(tests::segments_with(id).empty());
  }

  tests::ScratchFolder folder_;
  std::string text_;
};

// Covers beyond-8.
TEST_F(Failures, FiftyRandomKillsAreReportedFirstAndRestarted) {
  GptJob plain{4, 100, {}, {}};
  auto reference = folder_.path("reference");
  ASSERT_EQ(
      tests::run_command(tests::gpt_command(plain, text_, reference), std::chrono::seconds(60)).exit_code, 0);
  auto expected = tests::read_record(reference).state;
  core::CounterRandom random(static_cast<std::uint64_t>(getpid()), "kills");
  int hits = 0;

  for (std::uint64_t i = 0; i < 50; ++i) {
    auto id = unique_id(fmt::format("kill{}", i));
    int rank = static_cast<int>(random.below(4, 2 * i));
    auto delay = std::chrono::microseconds(random.below(250'000, 2 * i + 1));
    GptJob job{4, 100, {"--max-restarts", "2", "--restart-backoff", "0", "--rdzv-id", id}, {}};
    auto output = folder_.path(id);
    SCOPED_TRACE(fmt::format("kill {} of rank {} after {} us, random numbers of process {}", i, rank,
                             delay.count(), getpid()));

    auto killed = run_and_signal(job, id, text_, output, rank, delay, SIGKILL);

    ASSERT_EQ(killed.result.exit_code, 0) << killed.result.output;
    EXPECT_EQ(tests::read_record(output).state, expected);
    if (killed.hit && killed.result.output.find("SIGKILL") != std::string::npos) {
      hits += 1;
      auto first = killed.result.output.find("SIGKILL");
      auto line_start = killed.result.output.rfind('\n', first) + 1;
      auto line =
          killed.result.output.substr(line_start, killed.result.output.find('\n', first) - line_start);
      EXPECT_NE(line.find(fmt::format("rank {}", rank)), std::string::npos) << line;
    }
    expect_nothing_left(id);
  }
  EXPECT_GE(hits, 25) << "most of the kills should find the job at work";
}

TEST_F(Failures, WithoutRestartsKilledRanksEndTheJobByName) {
  auto id = unique_id("norestart");
  GptJob job{3, 2000, {"--rdzv-id", id}, {}};

  auto killed =
      run_and_signal(job, id, text_, folder_.path("run"), 1, std::chrono::milliseconds(300), SIGKILL);

  EXPECT_TRUE(killed.hit);
  EXPECT_EQ(killed.result.exit_code, 1) << killed.result.output;
  EXPECT_NE(killed.result.output.find("rank 1"), std::string::npos) << killed.result.output;
  expect_nothing_left(id);
}

TEST_F(Failures, Usr1PrintsWhoAwaitsWhomAndTheJobContinues) {
  auto id = unique_id("usr1");
  GptJob job{2, 2000, {"--rdzv-id", id}, {}};

  auto asked =
      run_and_signal(job, id, text_, folder_.path("run"), 0, std::chrono::milliseconds(400), SIGUSR1);

  EXPECT_TRUE(asked.hit);
  EXPECT_EQ(asked.result.exit_code, 0) << asked.result.output;
  EXPECT_NE(asked.result.output.find("who waits for whom, rank 0"), std::string::npos) << asked.result.output;
  EXPECT_NE(asked.result.output.find("conductor @ rank 0"), std::string::npos) << asked.result.output;
}

}  // namespace
}  // namespace troupe
