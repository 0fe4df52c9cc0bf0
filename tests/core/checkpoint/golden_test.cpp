#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/checkpoint/safetensors.hpp"
#include "core/element_range.hpp"
#include "tests/core/checkpoint/saved_job.hpp"
#include "tests/support/folder.hpp"

namespace troupe::core {
namespace {

using testing::ElementsAre;
using testing::Pair;
using testing::UnorderedElementsAre;

/// A file that tests/golden/checkpoint/make_golden.py wrote, which shares no code with what is tested.
std::string golden(const std::string& name) {
  std::ifstream file(tests_folder() / "golden" / "checkpoint" / name, std::ios::binary);
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string in_step(const std::string& name) {
  return golden("step_00000007/" + name);
}

const std::vector<Tensor> kTensors{
    {"weight", DType::f32, {5, 4}},    {"bias", DType::bf16, {3}},
    {"table", DType::i64, {2}},        {"scale", DType::f64, {}},
    {"none", DType::f32, {0, 7}},      {"mask \"q\"/\u00e9", DType::boolean, {2, 2}},
    {"narrow", DType::f8_e4m3, {2, 3}}};

/// The content that the script gives them.
Bytes content(const Tensor& tensor) {
  const auto number = std::find(kTensors.begin(), kTensors.end(), tensor) - kTensors.begin() + 1;
  Bytes bytes(static_cast<std::size_t>(elements_of(tensor.shape)) * size_of(tensor.dtype));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto value =
        tensor.dtype == DType::boolean ? i % 2 : (static_cast<std::size_t>(number) * 37 + i * 7) % 113;
    bytes[i] = static_cast<std::byte>(value);
  }
  return bytes;
}

/// What the two ranks hold: of the weight a flat range each, the small tensors of their own, and the same
/// three.
std::vector<SaveStructure> ranks() {
  std::vector<SaveStructure> structures(2);
  const auto give = [&](std::size_t rank, std::size_t tensor, const std::vector<Box>& boxes) {
    const auto number = static_cast<std::uint32_t>(structures[rank].tensors.size());
    structures[rank].tensors.push_back(kTensors[tensor]);
    for (const auto& box : boxes) structures[rank].pieces.push_back({number, box});
  };
  give(0, 0, boxes_of_range({5, 4}, {0, 9}));
  give(0, 1, {Box::whole({3})});
  give(1, 0, boxes_of_range({5, 4}, {9, 20}));
  give(1, 5, {Box::whole({2, 2})});
  give(1, 6, {Box::whole({2, 3})});
  for (std::size_t rank : {0, 1}) {
    for (std::size_t tensor : {2, 3, 4}) give(rank, tensor, {Box::whole(kTensors[tensor].shape)});
  }
  return structures;
}

SavedJob saved() {
  const auto structures = ranks();
  auto job = save(structures, plan_save(views_of(structures)).value(), content);
  job.manifest.topology = Value::Map{{"strategy", "zero1"}, {"world", 2}};
  Value::Map groups;
  groups.set(Key{std::int64_t{0}}, "decay").set(Key{std::int64_t{1}}, "no decay");
  job.manifest.common =
      Value::Map{{"iteration", 7},
                 {"betas", Value::tuple({0.9, 0.95})},
                 {"groups", groups},
                 {"seed", Value::Bytes{std::byte{0}, std::byte{1}, std::byte{2}, std::byte{255}}}};
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    const Value::Map lanes{{"lanes", Value::List{2 * rank + 1, 2 * rank + 2}}};
    job.manifest.objects.push_back({"rng_state", {2}, {rank}, lanes});
  }
  return job;
}

TEST(GoldenCheckpoint, IsWrittenByteForByte) {
  const auto job = saved();

  EXPECT_EQ(to_text(job.manifest), in_step(kManifestName));
  ASSERT_EQ(job.files.size(), 4U);
  for (const auto& [name, bytes] : job.files) {
    const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    EXPECT_EQ(text, in_step(name)) << name;
  }
}

// Covers save-14.
TEST(GoldenCheckpoint, IsReadWithItsValues) {
  const auto manifest = parse_manifest(in_step(kManifestName)).value();

  EXPECT_EQ(manifest, saved().manifest);
  EXPECT_EQ(manifest.step, StepCount{7});
  EXPECT_EQ(manifest.save, "0123456789abcdef");
  ASSERT_NE(manifest.common.find("betas.1"), nullptr);
  EXPECT_EQ(manifest.common.find("betas.1")->as_double(), 0.95);
  ASSERT_NE(manifest.common.find("groups.1"), nullptr);
  EXPECT_EQ(*manifest.common.find("groups.1")->as_string(), "no decay");
  ASSERT_GE(manifest.objects.size(), 2U);
  ASSERT_NE(manifest.objects[1].value.find("lanes.0"), nullptr);
  EXPECT_EQ(manifest.objects[1].value.find("lanes.0")->as_int(), 3);
}

// Covers save-18.
TEST(GoldenCheckpoint, HoldsTheHashesOfItsBytes) {
  const auto manifest = parse_manifest(in_step(kManifestName)).value();

  for (const auto& file : manifest.files) {
    const auto bytes = in_step(file.name);
    EXPECT_EQ(bytes.size(), file.bytes);
    EXPECT_EQ(hash64(std::string_view(bytes).substr(0, file.header_bytes)), file.header_hash);
  }
  for (const auto& tensor : manifest.tensors) {
    for (const auto& shard : tensor.shards) {
      const auto bytes = in_step(manifest.files[shard.file].name);
      EXPECT_EQ(hash64(std::string_view(bytes).substr(shard.begin, shard.bytes())), shard.hash) << tensor.key;
    }
  }
}

// Covers save-9.
TEST(GoldenCheckpoint, GivesEveryTensorAsAWhole) {
  SavedJob job{parse_manifest(in_step(kManifestName)).value(), {}};
  for (const auto& file : job.manifest.files) {
    const auto bytes = in_step(file.name);
    const auto view = bytes_in(bytes);
    job.files[file.name] = {view.begin(), view.end()};
  }
  std::vector<LoadTarget> targets;
  for (const auto& tensor : kTensors)
    targets.push_back({tensor.key, tensor.dtype, tensor.shape, Box::whole(tensor.shape), false});

  const auto loaded = load(job, plan_load(job.manifest, targets).value(), targets);

  for (std::size_t i = 0; i < kTensors.size(); ++i)
    EXPECT_EQ(loaded[i], content(kTensors[i])) << kTensors[i].key;
}

TEST(GoldenCheckpoint, SaysInEveryShardWhereItsPartsLie) {
  const auto file = in_step("shard_00001_0.safetensors");

  const auto header = parse_safetensors_header(bytes_in(file), file.size()).value();

  EXPECT_EQ(header.entries[0], (SafetensorsEntry{"weight", DType::f32, {1, 3}, 512, 524}));
  EXPECT_THAT(sharding_offsets(header).value(), ElementsAre(Shape{2, 1}, Shape{0, 0}, Shape{0, 0}, Shape{}));
}

TEST(ForeignSafetensors, OfTheReferenceImplementationAreRead) {
  const auto file = golden("foreign.safetensors");

  const auto header = parse_safetensors_header(bytes_in(file), file.size()).value();

  EXPECT_THAT(header.metadata, UnorderedElementsAre(Pair("format", "pt"), Pair("\u00e9", "\"")));
  const auto at = header.data_begin;
  EXPECT_THAT(header.entries, ElementsAre(SafetensorsEntry{"scalar", DType::f64, {}, at, at + 8},
                                          SafetensorsEntry{"matrix", DType::f32, {2, 3}, at + 8, at + 32},
                                          SafetensorsEntry{"empty", DType::i16, {0, 4}, at + 32, at + 32},
                                          SafetensorsEntry{"flag", DType::boolean, {2}, at + 32, at + 34}));
  EXPECT_THAT(sharding_offsets(header).value(), ElementsAre(Shape{}, Shape{0, 0}, Shape{0, 0}, Shape{0}));
  EXPECT_EQ(file.substr(at + 32), std::string("\x01\x00", 2));
}

}  // namespace
}  // namespace troupe::core
