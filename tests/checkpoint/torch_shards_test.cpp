#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/checkpoint/checkpoint_tool.hpp"

namespace troupe::apps {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

namespace fs = std::filesystem;

/// What four ranks of PyTorch saved, each for itself: `rank_files` over a mesh of 4, `rank_files_hsdp` over
/// 2 x 2, with replicas.
class RankFiles : public testing::Test {
 protected:
  void take(const std::string& name) { fs::copy(golden("interop/" + name), directory_.path("from")); }

  std::string file(const std::string& kind, int rank, int world = 4) const {
    return directory_.path("from/" + kind + "_world_size_" + std::to_string(world) + "_rank_" +
                           std::to_string(rank) + ".pt");
  }

  Output import() { return run_checkpoint({"import", directory_.path("from"), directory_.path("out")}); }
  Output show() { return run_checkpoint({"show", directory_.path("from")}); }

  /// The one place of `bytes` in a file gets others.
  static void replace(const std::string& path, const std::string& bytes, const std::string& others) {
    auto content = read_file(path);
    const auto at = content.find(bytes);
    ASSERT_NE(at, std::string::npos);
    ASSERT_EQ(content.find(bytes, at + 1), std::string::npos);
    content.replace(at, bytes.size(), others);
    write_file(path, content);
  }

  ScratchFolder directory_;
};

// Covers ranks-21.
TEST_F(RankFiles, BecomeAModelOfHuggingFaceWithoutTheOptimizer) {
  take("rank_files");

  const auto run = run_checkpoint(
      {"export", directory_.path("from"), directory_.path("model"), "--to", "huggingface", "--json"});

  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(nlohmann::json::parse(run.out)["tensors"], 3) << "weight, bias and a buffer";
}

TEST_F(RankFiles, KeepTheOptimizersGroupsAmongTheValues) {
  take("rank_files");

  ASSERT_EQ(import().exit_code, 0);

  const auto common = manifest_at(directory_.path("out/step_00000000")).common;
  const auto* groups = common.find("trainer.optimizer.param_groups");
  ASSERT_NE(groups, nullptr);
  EXPECT_EQ(*groups->as_list()->at(0).find("lr"), core::Value(0.1));
}

TEST_F(RankFiles, SayThatNumbersInSeveralGroupsNameNoParameter) {
  take("rank_files_groups");

  const auto run = import();

  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("left out 'optimizer.state': it numbers parameters in 2 groups"));
  EXPECT_EQ(contents_of(directory_.path("out/step_00000000")).size(), 2U);
}

TEST_F(RankFiles, AreRefusedWithoutARank) {
  take("rank_files");
  fs::remove(file("model", 2));

  EXPECT_THAT(import().err,
              HasSubstr("model_world_size_4_rank_2.pt is missing; all 4 ranks must have saved"));
}

TEST_F(RankFiles, AreRefusedWithTheOptimizerOfSomeRanksOnly) {
  take("rank_files");
  fs::remove(file("optim", 0));

  EXPECT_THAT(import().err, HasSubstr("optim_world_size_4_rank_0.pt is missing"));
}

TEST_F(RankFiles, AreReadWithoutAnOptimizer) {
  take("rank_files");
  for (int rank = 0; rank < 4; ++rank) fs::remove(file("optim", rank));

  ASSERT_EQ(import().exit_code, 0);

  EXPECT_EQ(contents_of(directory_.path("out/step_00000000")).size(), 3U);
}

TEST_F(RankFiles, OfTheJobThatSavedLastAreRead) {
  take("rank_files");
  fs::copy_file(golden("interop/rank_files_groups/model_world_size_1_rank_0.pt"), file("model", 0, 1));
  EXPECT_THAT(show().out, HasSubstr("9 tensors")) << "fsdp_config.json says 4 ranks";

  fs::remove(directory_.path("from/fsdp_config.json"));
  EXPECT_THAT(show().err, HasSubstr("there are files of jobs of 1 to 4 ranks"));

  write_file(directory_.path("from/fsdp_config.json"), R"({"FSDP_version": 2, "world_size": 8})");
  EXPECT_THAT(show().err, HasSubstr("says that 8 ranks saved, and there is no model_world_size_8_rank_0.pt"));

  write_file(directory_.path("from/fsdp_config.json"), "{");
  EXPECT_THAT(show().err, HasSubstr("fsdp_config.json does not say the world_size"));
}

TEST_F(RankFiles, AreRefusedWhenOneBelongsToAnotherPlace) {
  take("rank_files");
  fs::copy_file(file("model", 3), file("model", 0), fs::copy_options::overwrite_existing);

  EXPECT_THAT(import().err,
              HasSubstr("has shape (0, 3), and rank 0 has (2, 3) of it; is this another rank's file?"));
}

TEST_F(RankFiles, WithOtherBytesThanTheirSumsAreRefused) {
  take("rank_files");
  const auto expected = nlohmann::json::parse(read_file(golden("interop/rank_files/expected.json")));
  const auto hex = expected["tensors"]["weight"]["bytes"].get<std::string>();
  std::string element;
  for (std::size_t i = 0; i < 8; i += 2)
    element += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  auto other = element;
  other[0] = static_cast<char>(other[0] ^ 1);
  replace(file("model", 0), element, other);

  EXPECT_THAT(import().err,
              AllOf(HasSubstr("model_world_size_4_rank_0.pt"), HasSubstr("the bytes were altered")));
}

TEST_F(RankFiles, WhosePlainTensorsDifferAreRefusedEvenUnchecked) {
  take("rank_files");
  // The buffer's eight bytes on rank 1; show() compares no sums.
  auto content = read_file(file("model", 1));
  std::string two(8, '\0');
  two[0] = 2;
  const auto at = content.find(two, content.find("/data/0"));
  ASSERT_NE(at, std::string::npos);
  content[at] = 3;
  write_file(file("model", 1), content);

  EXPECT_THAT(show().err, HasSubstr("ranks 0 and 1 have other values of 'seen'"));
}

TEST_F(RankFiles, WhoseReplicasDifferAreRefused) {
  take("rank_files_hsdp");
  // Ranks 2 and 3 are replicas of 0 and 1, and both halves are as long.
  fs::copy_file(file("model", 2), file("model", 3), fs::copy_options::overwrite_existing);

  EXPECT_THAT(import().err, HasSubstr("ranks 1 and 3 have other values of 'embed.weight'"));
}

TEST_F(RankFiles, ThatAreCutShortOrForgedAreRefused) {
  take("rank_files");
  const auto whole = read_file(file("optim", 1));
  write_file(file("optim", 1), whole.substr(0, whole.size() / 2));
  EXPECT_THAT(import().err, HasSubstr("optim_world_size_4_rank_1.pt"));
  write_file(file("optim", 1), whole);

  replace(file("model", 1), "_local_tensor", "_global_tensr");
  const auto run = import();
  EXPECT_NE(run.exit_code, 0);
  EXPECT_THAT(run.err, Not(HasSubstr("terminate")));
}

}  // namespace
}  // namespace troupe::apps
