#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "apps/troupe/checkpoint/show.hpp"
#include "tests/checkpoint/checkpoint_tool.hpp"

namespace troupe::apps {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

// Covers stored-6, stored-17.
TEST(CheckpointShow, ListsTensorsValuesAndObjects) {
  const Output run = run_checkpoint({"show", golden_checkpoint()});

  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.out, HasSubstr("step 7  save 0123456789abcdef  written 2"));
  EXPECT_THAT(run.out, HasSubstr("saved by: strategy \"zero1\", world 2"));
  EXPECT_THAT(run.out, HasSubstr("tensor      dtype               shape shards      bytes\n"
                                 "bias        bf16                  (3)      1        6 B\n"
                                 "mask \"q\"/\xc3\xa9  boolean            (2, 2)      1        4 B\n"));
  EXPECT_THAT(run.out, HasSubstr("7 tensors, 36 elements, 120 B in 4 files\n"));
  EXPECT_THAT(run.out, HasSubstr("  betas      (0.9, 0.95)\n  groups.0   \"decay\"\n"));
  EXPECT_THAT(run.out, HasSubstr("  rng_state                        2 of a grid (2)\n"));
}

TEST(CheckpointShow, PrintsJsonWithTypedValues) {
  const auto json = Json::parse(run_checkpoint({"show", golden_checkpoint(), "--json"}).out);

  EXPECT_EQ(json["step"], 7);
  EXPECT_EQ(json["save"], "0123456789abcdef");
  EXPECT_EQ(json["topology"]["world"], 2);
  EXPECT_EQ(json["common"]["groups"]["$map"][1][1], "no decay");
  ASSERT_EQ(json["tensors"].size(), 7U);
  EXPECT_EQ(json["tensors"][6], Json::parse(R"({"key": "weight", "dtype": "f32", "shape": [5, 4],)"
                                            R"( "bytes": 80, "shards": 4})"));
  EXPECT_EQ(json["objects"][1]["value"]["lanes"][0], 3);
}

TEST(CheckpointShow, DrawsWhoHoldsWhichPartOfATensor) {
  const Output run = run_checkpoint({"show", golden_checkpoint(), "--tensor", "weight"});

  EXPECT_THAT(run.out, HasSubstr("across: axis 1: 4 indices, one per column\n"
                                 "down:   axis 0: 5 indices, one per row\n"
                                 "\n"
                                 "              0   4\n"
                                 "             +----+\n"
                                 "           0 |aaaa|\n"
                                 "           1 |aaaa|\n"
                                 "           2 |bccc|\n"
                                 "           3 |dddd|\n"
                                 "           4 |dddd|\n"
                                 "           5 +----+\n"));
  EXPECT_THAT(run.out, HasSubstr("c  [2:3, 1:4]  rank 1  bytes 512 to 524 of shard_00001_0.safetensors"));
}

TEST(CheckpointShow, MapsALargeTensorWithinEightyColumns) {
  core::ManifestTensor tensor{"large", core::DType::f32, {3, 100'000, 1'000'000}, {}};
  for (std::int64_t part = 0; part < 4; ++part)
    tensor.shards.push_back({{{0, 0, part * 250'000}, {3, 100'000, 250'000}}, 0, 0, 0, 0});

  const auto map = tensor_map(tensor);

  std::istringstream lines(map);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80U) << line;
  EXPECT_THAT(map, HasSubstr("|" + std::string(15, 'a') + std::string(15, 'b') + std::string(15, 'c') +
                             std::string(15, 'd') + "|"));
}

TEST(CheckpointShow, TheTensorAsJsonHasEveryShard) {
  const auto json =
      Json::parse(run_checkpoint({"show", golden_checkpoint(), "--tensor", "weight", "--json"}).out);

  ASSERT_EQ(json["shards"].size(), 4U);
  EXPECT_EQ(json["shards"][1], Json::parse(R"({"file": "shard_00000_1.safetensors", "begin": 192,)"
                                           R"( "end": 196, "rank": 0, "hash": "39a3f56a2ad19b00",)"
                                           R"( "offset": [2, 0], "extent": [1, 1]})"));
}

TEST(CheckpointShow, AnUnknownTensorIsAnsweredWithNamesLikeIt) {
  const Output run = run_checkpoint({"show", golden_checkpoint(), "--tensor", "wei"});

  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("has no tensor 'wei'; there are 'weight'"));
}

TEST(CheckpointShow, TakesTheNewestWholeOneOfADirectory) {
  ScratchFolder directory;
  for (const int step : {1, 2, 3})
    make_checkpoint(directory.path(""), step, {{"a", core::DType::u8, {2}, "ab"}});
  std::filesystem::remove(directory.path("step_00000003/shard_00000_0.safetensors"));

  const Output run = run_checkpoint({"show", directory.path(""), "--json"});

  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(Json::parse(run.out)["step"], 2);
  EXPECT_THAT(run.err, HasSubstr("passed over step_00000003: shard_00000_0.safetensors is missing"));
  EXPECT_THAT(run.err, HasSubstr("the newest whole one of 3"));
}

// Covers stored-8.
TEST(CheckpointShow, RefusesWhatIsNoCheckpoint) {
  ScratchFolder directory;

  const Output empty = run_checkpoint({"show", directory.path("")});
  const Output nothing = run_checkpoint({"show", directory.path("none")});

  EXPECT_EQ(empty.exit_code, 2);
  EXPECT_THAT(empty.err, HasSubstr("expected manifest.json or directories such as step_00000200 in it"));
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("does not exist"));
}

TEST(CheckpointShow, ASaveThatNeverEndedIsNoCheckpoint) {
  ScratchFolder directory;
  const auto path = directory.path("step_00000007.tmp-0123456789abcdef/");
  std::filesystem::copy(golden_checkpoint(), path);
  std::filesystem::remove(path + "manifest.json");

  for (const Output& run :
       {run_checkpoint({"show", path}), run_checkpoint({"diff", path, golden_checkpoint()}),
        run_checkpoint({"export", path, directory.path("model"), "--to", "huggingface"}),
        run_checkpoint({"verify", path})}) {
    EXPECT_EQ(run.exit_code, 2);
    EXPECT_THAT(run.err, HasSubstr("a directory without a manifest is a save that never finished"));
  }
}

TEST(CheckpointShow, NamesThatSteerATerminalAreEscaped) {
  ScratchFolder directory;
  const auto path = make_checkpoint(directory.path(""), 1, {{"a\x1b[2Jb", core::DType::u8, {2}, "ab"}});

  const Output run = run_checkpoint({"show", path});

  EXPECT_EQ(run.out.find('\x1b'), std::string::npos);
  EXPECT_THAT(run.out, HasSubstr("\"a\\x1b[2Jb\""));
}

TEST(CheckpointShow, ReadsPyTorchsOwnCheckpoints) {
  const Output run = run_checkpoint({"show", golden("interop/mesh"), "--tensor", "rows_and_columns"});

  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.out, HasSubstr("           0 |aaabbb|\n"
                                 "           1 |aaabbb|\n"
                                 "           2 |cccddd|\n"
                                 "           3 |cccddd|\n"));
}

}  // namespace
}  // namespace troupe::apps
