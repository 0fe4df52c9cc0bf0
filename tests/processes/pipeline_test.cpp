#include <fmt/format.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "apps/report/run_record.hpp"
#include "tests/processes/gpt_job.hpp"

namespace troupe {
namespace {

using Flags = std::vector<std::string>;

/// Jobs of real processes that train eight layers of the smallest size.
class PipelineProcesses : public testing::Test {
 protected:
  tests::GptRecord run(int ranks, int steps, const Flags& cut, const Flags& more = {}) {
    tests::GptJob job{ranks, steps, {}, {"--layers", "8"}};
    job.trainer_options.insert(job.trainer_options.end(), cut.begin(), cut.end());
    job.trainer_options.insert(job.trainer_options.end(), more.begin(), more.end());
    return tests::run_gpt(job, text_, folder_.path("run"));
  }

  tests::ScratchFolder folder_;
  std::string text_ = tests::write_sample_text(folder_);
};

const Flags kTwoStages{"--pipeline-parallel", "2"};
const Flags kChunks{"--pipeline-parallel", "2", "--pipeline-schedule", "interleaved",
                    "--pipeline-chunks",   "2"};
const Flags kSplit{"--pipeline-parallel", "4", "--pipeline-schedule", "zero-bubble"};

TEST_F(PipelineProcesses, HaveTheBitsOfOneRank) {
  for (const Flags& model : {Flags{}, Flags{"--untied", "--strategy", "ddp"}}) {
    const auto expected = run(1, 20, {}, model);
    ASSERT_EQ(expected.losses.size(), 20u);
    ASSERT_LT(expected.losses.back(), expected.losses.front());

    for (const auto& [ranks, cut] : {std::pair{2, kTwoStages}, {4, kChunks}, {4, kSplit}}) {
      const auto found = run(ranks, 20, cut, model);
      EXPECT_EQ(found.losses, expected.losses) << cut.back();
      EXPECT_EQ(found.state, expected.state) << cut.back();
      const auto record = apps::read_run(folder_.path("run/run.jsonl"));
      ASSERT_TRUE(record && record->pipeline) << cut.back();
      EXPECT_EQ(record->pipeline->step, 19);
      EXPECT_EQ(std::to_string(record->pipeline->stages.size()), cut[1]);
      EXPECT_GT(record->pipeline->bubble_share, 0);
      EXPECT_LT(record->pipeline->bubble_share, 1);
    }
  }
}

TEST_F(PipelineProcesses, OfShardedParametersHaveTheBitsOfOneRank) {
  for (const Flags& model : {Flags{}, Flags{"--untied"}}) {
    const auto expected = run(1, 20, {}, model);

    for (const char* strategy : {"zero2", "zero3"}) {
      for (const auto& [ranks, cut] : {std::pair{4, kTwoStages}, {4, kChunks}, {4, kSplit}}) {
        auto flags = model;
        flags.insert(flags.end(), {"--strategy", strategy});
        const auto found = run(ranks, 20, cut, flags);
        EXPECT_EQ(found.losses, expected.losses) << cut.back() << " " << strategy;
        EXPECT_EQ(found.state, expected.state) << cut.back() << " " << strategy;
      }
    }
  }
}

TEST_F(PipelineProcesses, OfShardedParametersGoOnWhereOneWasKilled) {
  const auto id = fmt::format("pipeline-{}", getpid());
  tests::GptJob job{
      4, 60, {"--max-restarts", "1", "--rdzv-id", id}, {"--layers", "8", "--strategy", "zero3"}};
  const auto expected = run(1, 60, {});
  job.trainer_options.insert(job.trainer_options.end(), kTwoStages.begin(), kTwoStages.end());
  const auto checkpoints = folder_.path("checkpoints");
  job.trainer_options.insert(job.trainer_options.end(), {"--checkpoints", checkpoints, "--save-every", "5"});

  const auto outcome = tests::run_and_signal(
      tests::gpt_command(job, text_, folder_.path("killed")), id, 2,
      [&](int) { return tests::count_checkpoints(checkpoints) > 0; }, SIGKILL);

  ASSERT_TRUE(outcome.hit);
  ASSERT_EQ(outcome.result.exit_code, 0) << outcome.result.output;
  const auto record = apps::read_run(folder_.path("killed/run.jsonl"));
  ASSERT_TRUE(record);
  const bool is_resumed = std::any_of(record->events.begin(), record->events.end(), [](const auto& event) {
    return event.kind == "resume" && event.text.find("resumed from step_") != std::string::npos;
  });
  EXPECT_TRUE(is_resumed) << outcome.result.output;
  EXPECT_EQ(tests::read_record(folder_.path("killed")).state, expected.state);
}

// Covers model-20.
TEST_F(PipelineProcesses, GoOnFromEachOthersCheckpoints) {
  const auto expected = run(1, 12, {});
  const auto saved = [&](const char* name) { return Flags{"--checkpoints", folder_.path(name)}; };

  run(4, 6, kSplit, saved("cut"));
  const auto alone = run(1, 12, {}, saved("cut"));
  run(1, 6, {}, saved("whole"));
  const auto cut = run(4, 12, kChunks, saved("whole"));

  for (const auto& record : {alone, cut}) {
    EXPECT_EQ(record.losses.size(), 6u);
    EXPECT_EQ(record.state, expected.state);
  }
}

TEST_F(PipelineProcesses, OfSharedLayersHaveFixedSlicesBitsAcrossCheckpoints) {
  const Flags mesh{"--tensor-parallel", "2", "--pipeline-parallel", "2"};
  const auto with = [](Flags flags, const Flags& more) {
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  };
  const auto whole = run(1, 20, {});
  ASSERT_EQ(whole.losses.size(), 20u);
  for (const Flags& rows : {Flags{}, Flags{"--sequence-parallel"}}) {
    const auto slices = run(1, 20, {"--tensor-slices", "2"}, {});
    for (std::size_t step = 0; step < whole.losses.size(); ++step)
      EXPECT_NEAR(slices.losses[step], whole.losses[step], 1e-5 * whole.losses[step]);
    for (const Flags& schedule : {Flags{}, Flags{"--pipeline-schedule", "zero-bubble"},
                                  Flags{"--pipeline-schedule", "interleaved", "--pipeline-chunks", "2"}}) {
      const auto found = run(4, 20, with(mesh, schedule), rows);
      EXPECT_EQ(found.losses, slices.losses);
      EXPECT_EQ(found.state, slices.state);
      const auto record = apps::read_run(folder_.path("run/run.jsonl"));
      ASSERT_TRUE(record && record->traffic);
      std::vector<std::string> axes;
      for (const auto& axis : record->traffic->axes) axes.push_back(axis.name);
      EXPECT_EQ(axes, (std::vector<std::string>{"data", "verdict", "tensor", "pipeline"}));
    }
    const auto name = "checkpoints" + std::to_string(rows.size());
    const auto saved = with(rows, {"--checkpoints", folder_.path(name)});
    run(4, 10, mesh, saved);
    const auto gone_on = run(1, 20, {"--tensor-slices", "2"}, {saved.end() - 2, saved.end()});
    EXPECT_EQ(gone_on.losses.size(), 10u);
    EXPECT_EQ(gone_on.state, slices.state);
  }
}

}  // namespace
}  // namespace troupe
