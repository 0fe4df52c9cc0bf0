#include "actors/planes/checkpoint/reader.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "actors/world/simulation/storage.hpp"
#include "core/errors.hpp"
#include "tests/actors/planes/checkpoint/faulty_storage.hpp"
#include "tests/actors/planes/checkpoint/stored_checkpoint.hpp"

namespace troupe::actors {
namespace {

using core::Box;
using core::DType;
using core::Errc;
using testing::HasSubstr;

const std::string kName = "step_00000003";

/// A disk with one small checkpoint.
class CheckpointReader : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(store(disk, saved)); }

  core::Result<std::vector<core::Bytes>> read(const std::vector<core::LoadTarget>& targets,
                                              const ReadOptions& options = {}) {
    std::vector<core::Bytes> values;
    for (const auto& target : targets) {
      values.emplace_back(static_cast<std::size_t>(target.box.elements()) * core::size_of(target.dtype),
                          std::byte{0xee});
    }
    std::vector<std::span<std::byte>> memory(values.begin(), values.end());
    TRY(read_tensors(disk, kName, saved.manifest, targets, memory, options));
    return values;
  }
  void put(const std::string& file, const core::Bytes& bytes) {
    ASSERT_TRUE(write_whole(disk, path_in(kName, file), bytes));
  }
  core::Bytes content(const std::string& key) const {
    auto bytes = core::content_of(key == "a" ? core::Tensor{"a", DType::f32, {4, 3}}
                                             : core::Tensor{"b", DType::bf16, {5}});
    for (auto& byte : bytes) byte ^= std::byte{3 * 37};
    return bytes;
  }

  core::SavedJob saved = small_checkpoint(3);
  SimulatedStorage disk{{}};
  const core::LoadTarget a{"a", DType::f32, {4, 3}, Box::whole({4, 3})};
  const core::LoadTarget b{"b", DType::bf16, {5}, Box::whole({5})};
};

TEST_F(CheckpointReader, ReadsWhatWasStored) {
  const auto values = read({a, b});

  ASSERT_TRUE(values) << values.error().message;
  EXPECT_EQ((*values)[0], content("a"));
  EXPECT_EQ((*values)[1], content("b"));
  EXPECT_TRUE(verify_checkpoint(disk, kName, saved.manifest));
}

// Covers save-19.
TEST_F(CheckpointReader, FindsEveryFlippedBitOfEveryFile) {
  for (const auto& [file, bytes] : saved.files) {
    for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      auto altered = bytes;
      altered[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
      put(file, altered);

      const auto verified = verify_checkpoint(disk, kName, saved.manifest);
      ASSERT_FALSE(verified) << file << " bit " << bit;
      ASSERT_EQ(verified.error().code, Errc::corrupt);
      ASSERT_THAT(verified.error().message, HasSubstr(file));
      const auto values_a = read({a});
      const auto values_b = read({b});
      const auto byte = bit / 8;
      auto hits = [&](const std::string& key) {
        for (const auto& shard : saved.manifest.find(key)->shards) {
          const auto& its_file = saved.manifest.files[shard.file];
          const bool in_it = byte < its_file.header_bytes || (byte >= shard.begin && byte < shard.end);
          if (its_file.name == file && in_it) return true;
        }
        return false;
      };
      ASSERT_EQ(values_a.has_value(), !hits("a")) << file << " bit " << bit;
      ASSERT_EQ(values_b.has_value(), !hits("b")) << file << " bit " << bit;
      ASSERT_TRUE(values_a || values_a.error().code == Errc::corrupt);
    }
    put(file, bytes);
  }
}

TEST_F(CheckpointReader, FindsEveryFlippedBitOfTheManifest) {
  const auto text = core::to_text(saved.manifest);
  for (std::size_t bit = 0; bit < text.size() * 8; ++bit) {
    auto altered = text;
    altered[bit / 8] = static_cast<char>(altered[bit / 8] ^ (1 << bit % 8));
    ASSERT_TRUE(write_whole(disk, path_in(kName, core::kManifestName), core::bytes_in(altered)));

    const auto manifest = read_manifest(disk, kName);

    ASSERT_FALSE(manifest) << "bit " << bit << " of " << altered;
  }
}

TEST_F(CheckpointReader, FindsEveryTruncation) {
  auto contents = saved.files;
  const auto text = core::to_text(saved.manifest);
  const auto bytes = core::bytes_in(text);
  contents[core::kManifestName] = core::Bytes(bytes.begin(), bytes.end());
  for (const auto& [file, whole] : contents) {
    for (std::size_t length = 0; length < whole.size(); ++length) {
      put(file, core::Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)));

      const auto quick = check_quickly(disk, kName);

      ASSERT_FALSE(quick) << file << " of " << length << " bytes";
      ASSERT_EQ(quick.error().code, Errc::corrupt);
      ASSERT_THAT(quick.error().message, HasSubstr(file));
      if (file == core::kManifestName) continue;
      ASSERT_FALSE(verify_checkpoint(disk, kName, saved.manifest));
      ASSERT_FALSE(read({a, b}));
      // Without looking at hashes too: whatever the length, the end of a shard of "a" or "b" is missing.
      ReadOptions careless;
      careless.verify = false;
      const auto values = read({a, b}, careless);
      ASSERT_FALSE(values) << file << " of " << length << " bytes";
      ASSERT_EQ(values.error().code, Errc::corrupt);
      ASSERT_THAT(values.error().message, HasSubstr(fmt::format("{} ends at byte ", path_in(kName, file))));
    }
    put(file, whole);
  }
}

TEST_F(CheckpointReader, NamesAllThatIsMissing) {
  for (const auto& [file, bytes] : saved.files) ASSERT_TRUE(disk.remove(path_in(kName, file)));

  const auto verified = verify_checkpoint(disk, kName, saved.manifest);
  const auto values = read({a});

  ASSERT_FALSE(verified);
  for (const auto& [file, bytes] : saved.files) EXPECT_THAT(verified.error().message, HasSubstr(file));
  EXPECT_FALSE(values);
}

TEST_F(CheckpointReader, TellsADiskThatDoesNotAnswerFromDamage) {
  auto options = SimulatedStorageOptions{};
  options.read_failure = 1;
  disk.set_options(options);

  const auto verified = verify_checkpoint(disk, kName, saved.manifest);

  ASSERT_FALSE(verified);
  EXPECT_EQ(verified.error().code, Errc::io);
}

TEST_F(CheckpointReader, ReportsAFailureOfAnyOperation) {
  FaultyStorage faulty(disk);
  faulty.fail_at(FaultyStorage::kNever, FaultyStorage::Fault::one_fails);
  ASSERT_TRUE(verify_checkpoint(faulty, kName, saved.manifest));
  const auto count = faulty.operations();

  for (std::uint64_t at = 0; at < count; ++at) {
    faulty.fail_at(at, FaultyStorage::Fault::one_fails);
    const auto verified = verify_checkpoint(faulty, kName, saved.manifest);

    ASSERT_FALSE(verified) << "operation " << at;
    EXPECT_THAT(verified.error().message, HasSubstr("no luck"));
  }
}

TEST_F(CheckpointReader, WindowsOfAnySizeGiveTheSame) {
  const core::LoadTarget middle{"a", DType::f32, {4, 3}, {{1, 1}, {2, 2}}};
  const auto whole = content("a");
  const auto expected = core::part_of(whole, {4, 3}, middle.box, 4);
  for (std::size_t chunk : {0, 1, 3, 4, 7, 8, 12, 24, 1000}) {
    for (bool verify : {true, false}) {
      ReadOptions options;
      options.chunk_bytes = chunk;
      options.verify = verify;

      const auto values = read({a, middle, b}, options);

      ASSERT_TRUE(values) << values.error().message;
      EXPECT_EQ((*values)[0], whole) << chunk;
      EXPECT_EQ((*values)[1], expected) << chunk;
      EXPECT_EQ((*values)[2], content("b")) << chunk;
      EXPECT_TRUE(verify_checkpoint(disk, kName, saved.manifest, options));
    }
  }
}

TEST_F(CheckpointReader, ConvertsFloatingTypes) {
  const core::LoadTarget wide{"b", DType::f32, {5}, Box::whole({5})};
  const auto stored = content("b");

  const auto values = read({wide});

  ASSERT_TRUE(values) << values.error().message;
  for (std::size_t i = 0; i < 5; ++i) {
    // A bf16 is the upper half of an fp32.
    std::array<std::byte, 4> expected{std::byte{0}, std::byte{0}, stored[2 * i], stored[2 * i + 1]};
    EXPECT_EQ(std::memcmp((*values)[0].data() + 4 * i, expected.data(), 4), 0) << i;
  }
  const core::LoadTarget impossible{"b", DType::i64, {5}, Box::whole({5})};
  ASSERT_FALSE(read({impossible}));
  EXPECT_EQ(read({impossible}).error().code, Errc::mismatch);
}

TEST_F(CheckpointReader, FillsWithZeroWhatAnotherShapeHasMore) {
  core::LoadTarget larger{"b", DType::bf16, {7}, {{3}, {4}}};
  EXPECT_EQ(read({larger}).error().code, Errc::mismatch);
  larger.allow_shape_mismatch = true;

  const auto values = read({larger});

  ASSERT_TRUE(values) << values.error().message;
  const auto whole = content("b");
  core::Bytes expected(whole.begin() + 6, whole.end());
  expected.resize(8);
  EXPECT_EQ((*values)[0], expected);
}

TEST_F(CheckpointReader, CountsEveryByteAsProgress) {
  std::uint64_t bytes = 0;
  ReadOptions options;
  options.chunk_bytes = 8;
  options.progress = [&](std::uint64_t more) { bytes += more; };

  ASSERT_TRUE(read({a, b}, options));
  const auto of_reading = bytes;
  bytes = 0;
  ASSERT_TRUE(verify_checkpoint(disk, kName, saved.manifest, options));

  EXPECT_EQ(of_reading, 12 * 4 + 5 * 2);
  EXPECT_EQ(bytes, 12 * 4 + 5 * 2);
}

// Covers stored-2.
TEST_F(CheckpointReader, WithoutVerifyingReadsOnlyWhatIsWanted) {
  std::uint64_t bytes = 0;
  ReadOptions options;
  options.chunk_bytes = 4;
  options.verify = false;
  options.progress = [&](std::uint64_t more) { bytes += more; };
  const core::LoadTarget last{"a", DType::f32, {4, 3}, {{3, 2}, {1, 1}}};

  ASSERT_TRUE(read({last}, options));

  EXPECT_EQ(bytes, 4u);
}

TEST_F(CheckpointReader, SaysWhichTensorIsNotThere) {
  const core::LoadTarget other{"c", DType::f32, {1}, Box::whole({1})};

  const auto values = read({other});

  ASSERT_FALSE(values);
  EXPECT_EQ(values.error().code, Errc::not_found);
  EXPECT_THAT(values.error().message, HasSubstr("c"));
}

}  // namespace
}  // namespace troupe::actors
