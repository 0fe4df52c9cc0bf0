#include "apps/files/source.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/hash.hpp"
#include "tests/checkpoint/checkpoint_tool.hpp"

namespace troupe::apps {
namespace {

using core::DType;
using Json = nlohmann::json;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

struct Ranks {
  const char* count;
  const char* strategy;

  friend std::ostream& operator<<(std::ostream& out, const Ranks& of) {
    return out << of.strategy << "_on_" << of.count;
  }
};

class CheckpointReshard : public testing::TestWithParam<Ranks> {};

// Covers uneven-1.
TEST_P(CheckpointReshard, KeepsEveryBitAndValue) {
  ScratchFolder directory;
  const auto out = directory.path("out");

  const Output run = run_checkpoint(
      {"reshard", golden_checkpoint(), out, "--mesh", GetParam().count, "--strategy", GetParam().strategy});

  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(contents_of(out + "/step_00000007"), contents_of(golden_checkpoint()));
  const auto before = manifest_at(golden_checkpoint());
  const auto after = manifest_at(out + "/step_00000007");
  EXPECT_EQ(after.step, before.step);
  EXPECT_EQ(after.common, before.common);
  EXPECT_EQ(after.objects, before.objects);
  EXPECT_NE(after.save, before.save);
  ASSERT_NE(after.topology.find("world"), nullptr);
  EXPECT_EQ(after.topology.find("world")->as_int(), std::stoll(GetParam().count));
  EXPECT_EQ(run_checkpoint({"verify", out}).exit_code, 0);
  EXPECT_EQ(run_checkpoint({"diff", golden_checkpoint(), out}).exit_code, 0);
  EXPECT_THAT(names_in(out), ElementsAre("latest_checkpointed_iteration.txt", "step_00000007"));
  EXPECT_EQ(read_file(out + "/latest_checkpointed_iteration.txt"), "7\n");
}

INSTANTIATE_TEST_SUITE_P(ToRanks, CheckpointReshard,
                         testing::Values(Ranks{"1", "zero1"}, Ranks{"2", "zero1"}, Ranks{"3", "zero1"},
                                         Ranks{"8", "zero1"}, Ranks{"100", "zero1"}, Ranks{"1", "ddp"},
                                         Ranks{"5", "ddp"}, Ranks{"100", "ddp"}),
                         testing::PrintToStringParamName());

/// Bytes that each rank wrote.
std::vector<std::uint64_t> bytes_by_rank(const core::Manifest& manifest, std::size_t ranks) {
  std::vector<std::uint64_t> bytes(ranks);
  for (const auto& tensor : manifest.tensors) {
    for (const auto& shard : tensor.shards)
      bytes.at(std::stoul(manifest.files[shard.file].name.substr(6, 5))) += shard.bytes();
  }
  return bytes;
}

TEST(CheckpointReshardParts, CutParametersAndMomentsAtTheSamePlaces) {
  ScratchFolder directory;
  const auto from = make_checkpoint(directory.path("in"), 1,
                                    {{"b", DType::u8, {3}, "abc"},
                                     {"w", DType::u8, {3, 3}, "123456789"},
                                     {"optimizer.state.exp_avg.b", DType::u8, {3}, "ABC"},
                                     {"optimizer.state.exp_avg.w", DType::u8, {3, 3}, "abcdefghi"}});

  run_checkpoint({"reshard", from, directory.path("out"), "--mesh", "4"});

  const auto manifest = manifest_at(directory.path("out/step_00000001"));
  EXPECT_THAT(bytes_by_rank(manifest, 4), ElementsAre(6, 6, 6, 6));
  for (const std::string name : {"b", "w"}) {
    ASSERT_NE(manifest.find(name), nullptr);
    const auto& parameter = manifest.find(name)->shards;
    ASSERT_NE(manifest.find("optimizer.state.exp_avg." + name), nullptr);
    const auto& moment = manifest.find("optimizer.state.exp_avg." + name)->shards;
    ASSERT_EQ(parameter.size(), moment.size());
    for (std::size_t i = 0; i < parameter.size(); ++i) EXPECT_EQ(parameter[i].box, moment[i].box);
  }
  // Twelve elements over four ranks: b is the first, w the others.
  ASSERT_NE(manifest.find("b"), nullptr);
  EXPECT_EQ(manifest.find("b")->shards.size(), 1U);
  ASSERT_NE(manifest.find("w"), nullptr);
  EXPECT_EQ(manifest.find("w")->shards.size(), 3U);
}

TEST(CheckpointReshardParts, WhatIsThereStays) {
  ScratchFolder directory;
  const auto out = directory.path("out");
  run_checkpoint({"reshard", golden_checkpoint(), out, "--mesh", "2"});
  const auto before = read_file(out + "/step_00000007/manifest.json");

  const Output run = run_checkpoint({"reshard", golden_checkpoint(), out, "--mesh", "3"});

  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("step_00000007 is already there and stays as it is"));
  EXPECT_EQ(read_file(out + "/step_00000007/manifest.json"), before);
}

TEST(CheckpointReshardParts, TheCheckpointItselfMayBeNamed) {
  ScratchFolder directory;

  const Output right =
      run_checkpoint({"reshard", golden_checkpoint(), directory.path("a/step_00000007/"), "--mesh", "2"});
  const Output wrong =
      run_checkpoint({"reshard", golden_checkpoint(), directory.path("a/step_00000008"), "--mesh", "2"});

  EXPECT_EQ(right.exit_code, 0) << right.err;
  EXPECT_TRUE(std::filesystem::exists(directory.path("a/step_00000007/manifest.json")));
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("which is step_00000007"));
}

TEST(CheckpointReshardParts, DamageIsNotCopied) {
  ScratchFolder directory;
  const auto from = directory.path("step_00000007");
  std::filesystem::copy(golden_checkpoint(), from);
  flip_bit(from + "/shard_00001_0.safetensors", 520);

  const Output run = run_checkpoint({"reshard", from, directory.path("out"), "--mesh", "2"});

  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("do not match their hash"));
  EXPECT_FALSE(std::filesystem::exists(directory.path("out")));
}

TEST(CheckpointReshardParts, NothingIsLeftOfWhatFails) {
  ScratchFolder directory;
  const auto from = directory.path("step_00000007");
  std::filesystem::copy(golden_checkpoint(), from);
  const auto out = directory.path("out");
  std::filesystem::create_directory(out);
  // A file where the tracker's temporary name would be does no harm; one that cannot be read does.
  std::filesystem::resize_file(from + "/shard_00001_1.safetensors", 200);

  const Output run = run_checkpoint({"reshard", from, out, "--mesh", "2", "--no-verify"});

  EXPECT_EQ(run.exit_code, 1);
  EXPECT_TRUE(names_in(out).empty());
}

TEST(CheckpointReshardParts, RanksAreBetweenOneAndManyThousands) {
  for (const char* ranks : {"0", "-1", "70000", "two"}) {
    EXPECT_EQ(run_checkpoint({"reshard", golden_checkpoint(), "nowhere", "--mesh", ranks}).exit_code, 2);
  }
  EXPECT_EQ(run_checkpoint({"reshard", golden_checkpoint(), "nowhere"}).exit_code, 2);
}

TEST(CheckpointReshardParts, StreamsAnyBoxInPiecesOfAnySize) {
  const auto source = open_source(golden_checkpoint()).value();
  const auto& tensor = *source.manifest.find("weight");
  const auto whole = contents_of(golden_checkpoint()).at("weight");

  for (std::int64_t row = 0; row < 5; ++row) {
    for (std::int64_t column = 0; column < 4; ++column) {
      const core::Box box{{row, column}, {5 - row, 4 - column}};
      std::string expected;
      for (std::int64_t i = row; i < 5; ++i)
        expected += whole.substr(static_cast<std::size_t>(i * 4 + column) * 4,
                                 static_cast<std::size_t>(4 - column) * 4);
      for (const std::size_t chunk_bytes : {1, 4, 8, 12, 20, 1000}) {
        std::string streamed;
        std::size_t largest = 0;
        ASSERT_TRUE(stream_box(source, tensor, DType::f32, box, chunk_bytes,
                               [&](std::span<const std::byte> bytes) -> core::Result<void> {
                                 largest = std::max(largest, bytes.size());
                                 streamed.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
                                 return {};
                               }));
        EXPECT_EQ(streamed, expected) << to_string(box) << " in pieces of " << chunk_bytes;
        EXPECT_LE(largest, std::max<std::size_t>(chunk_bytes, 4));
      }
    }
  }
}

}  // namespace
}  // namespace troupe::apps
