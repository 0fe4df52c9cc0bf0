#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "apps/report/run_record.hpp"
#include "tests/processes/gpt_job.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;
using tests::GptJob;

/// Local copies in memory, which outlive the processes.
class LocalCheckpoints : public testing::Test {
 protected:
  LocalCheckpoints() : text_(tests::write_sample_text(folder_)) {
    std::string pattern = "/dev/shm/troupe-test-XXXXXX";
    copies_ = mkdtemp(pattern.data());
  }
  ~LocalCheckpoints() override {
    std::error_code error;
    fs::remove_all(copies_, error);
  }

  GptJob job(int steps) const {
    return {4,
            steps,
            {},
            {"--strategy", "zero1", "--local-checkpoints", copies_, "--local-every", "1",
             "--replication-factor", "2", "--replication-jump", "2"}};
  }

  tests::CommandResult run(const GptJob& job, const std::string& output) {
    return tests::run_command(tests::gpt_command(job, text_, folder_.path(output)),
                              std::chrono::seconds(120));
  }

  std::string uninterrupted_state(int steps) {
    const auto result = run({1, steps, {}, {}}, "reference");
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return tests::read_record(folder_.path("reference")).state;
  }

  std::string event(const std::string& output, const std::string& kind) {
    const auto record = apps::read_run(fs::path(folder_.path(output)) / "run.jsonl");
    if (!record) return "no record";
    for (const auto& event : record->events) {
      if (event.kind == kind) return event.text;
    }
    return "no event";
  }

  /// The names in a rank's folder, and in the save that is there.
  std::vector<std::string> kept_by(int rank) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(fmt::format("{}/{}", copies_, rank))) {
      if (entry.is_directory()) names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  tests::ScratchFolder folder_;
  std::string text_;
  std::string copies_;
};

// Covers local-8.
TEST_F(LocalCheckpoints, OfRealProcessesComeBackFromTheClique) {
  auto first = job(30);
  ASSERT_EQ(run(first, "first").exit_code, 0);
  const auto kept = kept_by(3);
  ASSERT_EQ(kept.size(), 3u);
  EXPECT_EQ(kept[0], "rank_00001");
  EXPECT_EQ(kept[1], "rank_00003");
  EXPECT_TRUE(kept[2].starts_with("step_00000030-")) << kept[2];
  for (int rank : {0, 3}) fs::remove_all(fmt::format("{}/{}", copies_, rank));

  const auto again = run(job(60), "again");

  ASSERT_EQ(again.exit_code, 0) << again.output;
  EXPECT_TRUE(event("again", "resume").starts_with("resumed from step_00000030-"))
      << event("again", "resume");
  EXPECT_EQ(tests::read_record(folder_.path("again")).state, uninterrupted_state(60));
}

TEST_F(LocalCheckpoints, OutliveAKilledRankOfARestartedJob) {
  const auto id = fmt::format("local-{}", getpid());
  auto killed = job(400);
  killed.launch_options = {"--max-restarts", "1", "--rdzv-id", id};

  // A copy is kept after every step.
  const auto is_kept = [&](int) { return tests::read_record(folder_.path("killed")).losses.size() > 20; };

  const auto outcome = tests::run_and_signal(tests::gpt_command(killed, text_, folder_.path("killed")), id, 1,
                                             is_kept, SIGKILL);

  ASSERT_TRUE(outcome.hit);
  ASSERT_EQ(outcome.result.exit_code, 0) << outcome.result.output;
  EXPECT_TRUE(event("killed", "resume").starts_with("resumed from step_")) << outcome.result.output;
  EXPECT_EQ(tests::read_record(folder_.path("killed")).state, uninterrupted_state(400));
}

TEST_F(LocalCheckpoints, OfAnotherRunAreNotUsedByARestart) {
  ASSERT_EQ(run(job(30), "first").exit_code, 0);
  const GptJob saving{1, 8, {}, {"--checkpoints", folder_.path("saved")}};
  ASSERT_EQ(run(saving, "saving").exit_code, 0);
  for (const std::string& beginning : {std::string("never"), folder_.path("saved")}) {
    auto other = job(30);
    other.launch_options = {"--max-restarts", "1"};
    other.trainer_options.insert(other.trainer_options.end(), {"--resume", beginning});

    const auto refused = run(other, "refused");

    EXPECT_EQ(refused.exit_code, 97) << refused.output;
    EXPECT_NE(refused.output.find("local copies"), std::string::npos) << refused.output;
    EXPECT_EQ(refused.output.find("restart 1"), std::string::npos) << refused.output;
  }
}

}  // namespace
}  // namespace troupe
