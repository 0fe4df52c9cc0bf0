#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/processes/gpt_job.hpp"
#include "tests/support/command.hpp"
#include "tests/support/scratch_folder.hpp"

// Jobs that are computed in fixed slices, by `troupe launch`: what they export, byte for byte.

namespace troupe {
namespace {

using Flags = std::vector<std::string>;

class SlicedProcesses : public testing::Test {
 protected:
  /// What `gpt` said.
  std::string train(int ranks, int steps, Flags options, const Flags& more, const std::string& to) {
    options.insert(options.end(), more.begin(), more.end());
    options.insert(options.end(), {"--heads", "8", "--export", folder_.path(to)});
    const auto job = tests::gpt_command({ranks, steps, {}, options}, text_, folder_.path(to + "-run"));
    const auto result = tests::run_command(job, std::chrono::seconds(60));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return result.output;
  }
  /// What `gpt` says on two ranks to options that it does not take.
  std::string train_refused(const Flags& options) {
    const auto job = tests::gpt_command({2, 1, {}, options}, text_, folder_.path("refused"));
    const auto result = tests::run_command(job, std::chrono::seconds(60));
    EXPECT_NE(result.exit_code, 0) << result.output;
    return result.output;
  }
  std::string exported(const std::string& to) const {
    std::ifstream file(folder_.path(to) + "/model.safetensors", std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  tests::ScratchFolder folder_;
  std::string text_ = tests::write_sample_text(folder_);
};

TEST_F(SlicedProcesses, ExportTheSameBytesFromAnyMesh) {
  const struct {
    int ranks;
    Flags options;
  } meshes[] = {{2, {"--tensor-parallel", "2"}},
                {4, {"--tensor-parallel", "4", "--sequence-parallel"}},
                {2, {"--strategy", "zero3"}},
                {4, {"--tensor-parallel", "2", "--sequence-parallel", "--pipeline-parallel", "2"}}};
  for (const Flags& model :
       {Flags{"--tensor-slices", "4"}, Flags{"--tensor-slices", "8", "--experts", "4"}}) {
    const std::string one = model.size() > 2 ? "experts" : "dense";
    train(1, 3, model, {}, one);
    const auto alone = exported(one);
    ASSERT_FALSE(alone.empty());
    int number = 0;
    for (const auto& [ranks, options] : meshes) {
      const auto name = one + std::to_string(++number);
      train(ranks, 3, model, options, name);
      EXPECT_TRUE(exported(name) == alone) << ranks << " ranks, " << testing::PrintToString(options);
    }
  }
}

TEST_F(SlicedProcesses, ExportTheSameBytesWhoeverSharesSequences) {
  const struct {
    int ranks;
    Flags options;
  } meshes[] = {{2, {"--context-parallel", "2"}},
                {4, {"--context-parallel", "4", "--strategy", "zero3"}},
                {4, {"--context-parallel", "2", "--tensor-parallel", "2", "--sequence-parallel"}},
                {2, {"--strategy", "zero3"}},
                {2, {"--pipeline-parallel", "2"}},
                {2, {"--expert-parallel", "2"}},
                {4, {"--pipeline-parallel", "2", "--context-parallel", "2", "--strategy", "zero3"}}};
  const Flags model{"--tensor-slices", "2", "--context-pieces", "4", "--experts", "4"};
  train(1, 3, model, {}, "one");
  const auto alone = exported("one");
  ASSERT_FALSE(alone.empty());
  int number = 0;
  for (const auto& [ranks, options] : meshes) {
    const auto name = std::to_string(++number);
    train(ranks, 3, model, options, name);
    EXPECT_TRUE(exported(name) == alone) << ranks << " ranks, " << testing::PrintToString(options);
  }
  EXPECT_THAT(train_refused({"--context-pieces", "4", "--numerics", "fast"}),
              testing::HasSubstr("use --numerics ordered, or leave --context-pieces out"));
  EXPECT_THAT(train_refused({"--context-pieces", "3", "--context-parallel", "2"}),
              testing::HasSubstr("choose a multiple of --context-parallel"));
}

/// And a resume with another number of slices says so.
TEST_F(SlicedProcesses, GoOnFromOtherMeshesToTheSameBytes) {
  const Flags slices{"--tensor-slices", "4"};
  train(1, 6, slices, {}, "uninterrupted");
  const Flags saved{"--tensor-slices", "4", "--checkpoints", folder_.path("checkpoints")};

  train(4, 2, saved, {"--tensor-parallel", "2", "--sequence-parallel", "--strategy", "zero3"}, "first");
  train(1, 3, saved, {}, "second");
  train(4, 5, saved, {"--tensor-parallel", "4"}, "third");
  train(2, 6, saved, {"--pipeline-parallel", "2", "--pipeline-schedule", "zero-bubble"}, "last");

  ASSERT_FALSE(exported("uninterrupted").empty());
  EXPECT_TRUE(exported("last") == exported("uninterrupted"));
  EXPECT_THAT(
      train(2, 7, {"--checkpoints", folder_.path("checkpoints")}, {"--tensor-parallel", "2"}, "other"),
      testing::HasSubstr("--tensor-slices 2 (it was saved with 4)"));
}

}  // namespace
}  // namespace troupe
