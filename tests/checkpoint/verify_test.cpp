#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/checkpoint/checkpoint_tool.hpp"

namespace troupe::apps {
namespace {

using Json = nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class CheckpointVerify : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::copy(golden_checkpoint(), path_, std::filesystem::copy_options::recursive);
  }

  ScratchFolder directory_;
  std::string path_ = directory_.path("step_00000007");
};

// Covers save-18.
TEST_F(CheckpointVerify, AWholeCheckpointIsGood) {
  const Output run = run_checkpoint({"verify", path_});

  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.out,
              AllOf(HasSubstr("good     "), HasSubstr("step 7, 7 tensors, 120 B"), HasSubstr("MB/s")));
}

TEST_F(CheckpointVerify, EveryDamagedPartIsNamed) {
  flip_bit(path_ + "/shard_00000_0.safetensors", 384);
  flip_bit(path_ + "/shard_00001_0.safetensors", 100);
  flip_bit(path_ + "/shard_00001_0.safetensors", 541);

  const Output run = run_checkpoint({"verify", path_});

  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.out, AllOf(HasSubstr("DAMAGED  "), HasSubstr("shard_00000_0.safetensors: bytes 384 to 416"),
                             HasSubstr("[0:2, 0:4] of 'weight'"),
                             HasSubstr("shard_00001_0.safetensors: its header"), HasSubstr("of 'scale'")));
}

TEST_F(CheckpointVerify, AMissingFileIsNamedOnce) {
  std::filesystem::remove(path_ + "/shard_00001_0.safetensors");

  const auto json = Json::parse(run_checkpoint({"verify", path_, "--json"}).out);

  EXPECT_EQ(json[0]["good"], false);
  EXPECT_EQ(json[0]["damage"].size(), 1U) << json;
  for (const auto& line : json[0]["damage"])
    EXPECT_THAT(line.get<std::string>(), HasSubstr("shard_00001_0.safetensors"));
}

TEST_F(CheckpointVerify, QuickLooksAtSizesOnly) {
  flip_bit(path_ + "/shard_00000_0.safetensors", 384);
  const Output flipped = run_checkpoint({"verify", "--quick", path_});
  write_file(path_ + "/shard_00000_0.safetensors", "short");
  const Output cut = run_checkpoint({"verify", "--quick", path_});

  EXPECT_EQ(flipped.exit_code, 0);
  EXPECT_EQ(cut.exit_code, 1);
  EXPECT_THAT(cut.out, HasSubstr("shard_00000_0.safetensors has 5 bytes, the manifest says 438"));
}

TEST_F(CheckpointVerify, OfADirectoryEveryCheckpointHasItsLine) {
  make_checkpoint(directory_.path(""), 8, {{"a", core::DType::u8, {2}, "ab"}});
  flip_bit(path_ + "/manifest.json", 100);

  const Output run = run_checkpoint({"verify", directory_.path(""), "--json"});

  EXPECT_EQ(run.exit_code, 1);
  const auto json = Json::parse(run.out);
  ASSERT_EQ(json.size(), 2U);
  EXPECT_EQ(json[0]["step"], 8);
  EXPECT_EQ(json[0]["good"], true);
  EXPECT_EQ(json[1]["step"], nullptr);
  EXPECT_THAT(json[1]["damage"][0].get<std::string>(), HasSubstr("the manifest was altered"));
}

TEST_F(CheckpointVerify, WhatIsNoCheckpointIsAnErrorOfUse) {
  ScratchFolder empty;

  EXPECT_EQ(run_checkpoint({"verify", empty.path("")}).exit_code, 2);
  EXPECT_EQ(run_checkpoint({"verify", path_ + "/manifest.json"}).exit_code, 2);
  EXPECT_EQ(run_checkpoint({"verify"}).exit_code, 2);
}

// Covers save-19.
TEST_F(CheckpointVerify, AFlippedBitOfAnySeventhByteIsFound) {
  for (const auto& name : names_in(path_)) {
    const auto file = path_ + "/" + name;
    const auto size = read_file(file).size();
    for (std::size_t byte = 0; byte < size; byte += 7) {
      flip_bit(file, byte);
      EXPECT_EQ(run_checkpoint({"verify", path_}).exit_code, 1) << name << " byte " << byte;
      flip_bit(file, byte);
    }
  }
  EXPECT_EQ(run_checkpoint({"verify", path_}).exit_code, 0);
}

class CheckpointPrune : public testing::Test {
 protected:
  void SetUp() override {
    for (const int step : {100, 200, 300, 400, 500})
      make_checkpoint(directory_.path(""), step, {{"a", core::DType::u8, {2}, "ab"}});
  }

  ScratchFolder directory_;
};

TEST_F(CheckpointPrune, KeepsTheNewestAndEveryKth) {
  const Output run =
      run_checkpoint({"prune", directory_.path(""), "--keep-last", "2", "--keep-every", "200"});

  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(run.out, "removed step_00000300\nremoved step_00000100\n2 removed, 3 stay\n");
  EXPECT_THAT(names_in(directory_.path("")), ElementsAre("step_00000200", "step_00000400", "step_00000500"));
}

TEST_F(CheckpointPrune, ADryRunRemovesNothing) {
  const Output run =
      run_checkpoint({"prune", directory_.path(""), "--keep-last", "4", "--dry-run", "--json"});

  EXPECT_EQ(Json::parse(run.out)["removed"], Json::array({"step_00000100"}));
  EXPECT_EQ(names_in(directory_.path("")).size(), 5U);
}

TEST_F(CheckpointPrune, ADamagedOneDoesNotCountAndStays) {
  flip_bit(directory_.path("step_00000500/manifest.json"), 30);

  run_checkpoint({"prune", directory_.path(""), "--keep-last", "1"});

  EXPECT_THAT(names_in(directory_.path("")), ElementsAre("step_00000400", "step_00000500"));
}

TEST_F(CheckpointPrune, DoesNotCountAnAlteredOneAsTheNewest) {
  flip_bit(directory_.path("step_00000500/shard_00000_0.safetensors"),
           read_file(directory_.path("step_00000500/shard_00000_0.safetensors")).size() - 1);

  run_checkpoint({"prune", directory_.path(""), "--keep-last", "1"});

  EXPECT_THAT(names_in(directory_.path("")), ElementsAre("step_00000400", "step_00000500"));
}

TEST_F(CheckpointPrune, KeepingNoneIsRefused) {
  EXPECT_EQ(run_checkpoint({"prune", directory_.path(""), "--keep-last", "0"}).exit_code, 2);
  EXPECT_EQ(run_checkpoint({"prune", directory_.path("")}).exit_code, 2);
  EXPECT_EQ(names_in(directory_.path("")).size(), 5U);
}

}  // namespace
}  // namespace troupe::apps
