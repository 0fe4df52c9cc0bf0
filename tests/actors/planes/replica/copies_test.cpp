#include "actors/planes/replica/copies.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "actors/planes/checkpoint/directory.hpp"
#include "actors/world/simulation/storage.hpp"
#include "core/checkpoint/manifest.hpp"
#include "tests/actors/planes/checkpoint/faulty_storage.hpp"

namespace troupe::actors {
namespace {

using core::Errc;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const core::CopyName kName{{12}, 0xabc};
constexpr core::Rank kOwner{3};

/// Two parts of one tensor, so that there are two files.
core::SaveStructure sample_structure() {
  core::SaveStructure structure;
  structure.tensors = {{"a", core::DType::f32, {10}}, {"b", core::DType::u8, {5}}};
  structure.pieces = {{0, {{0}, {4}}}, {1, {{0}, {5}}}, {0, {{6}, {2}}}};
  return structure;
}

class Copies : public testing::Test {
 protected:
  Copies() {
    for (const auto& piece : structure_.pieces) {
      auto& bytes = values_.emplace_back(structure_.bytes_of(piece));
      for (auto& byte : bytes) byte = static_cast<std::byte>(next_++);
    }
  }

  /// A copy as a LocalWriter and a ReplicaKeeper leave it.
  std::uint64_t write_copy(Storage& storage, const core::CopyName& name = kName) {
    std::vector<std::uint32_t> pieces{0, 1, 2};
    const auto files = core::plan_files(structure_, pieces, kOwner);
    EXPECT_TRUE(make_copy_directory(storage, name, kOwner));
    core::WrittenShards written;
    for (const auto& planned : files) {
      auto file = storage.create(path_in(unfinished_path_of(name, kOwner), planned.name)).value();
      EXPECT_TRUE(file->append(std::as_bytes(std::span(planned.header))));
      for (const auto& shard : planned.shards) {
        EXPECT_TRUE(file->append(values_[shard.piece]));
        written.hashes.push_back(core::hash64(values_[shard.piece]));
      }
      EXPECT_TRUE(file->close());
    }
    core::CopyManifest manifest;
    manifest.name = name;
    manifest.owner = kOwner;
    manifest.world = {8};
    manifest.layout = core::layout_text(structure_);
    manifest.files = core::copy_files(files, written);
    return seal_copy(storage, manifest, true).value();
  }

  std::vector<std::byte> stream_of(Storage& storage, std::uint64_t bytes, std::size_t chunk) {
    auto source = CopySource::open(storage, kName, kOwner).value();
    std::vector<std::byte> stream(bytes);
    for (std::size_t at = 0; at < stream.size(); at += chunk)
      EXPECT_TRUE(source->read(std::span(stream).subspan(at, std::min(chunk, stream.size() - at))));
    return stream;
  }

  core::Result<void> load(Storage& storage, const core::SaveStructure& structure,
                          std::vector<std::vector<std::byte>>& values) {
    std::vector<std::span<std::byte>> memory;
    values.clear();
    for (const auto& piece : structure.pieces) values.emplace_back(structure.bytes_of(piece));
    for (auto& piece : values) memory.emplace_back(piece);
    return read_copy(storage, read_copy_manifest(storage, kName, kOwner).value(), structure, memory);
  }

  std::vector<std::string> files() { return *storage_.list(path_of(kName, kOwner)); }

  core::SaveStructure structure_ = sample_structure();
  std::vector<std::vector<std::byte>> values_;
  int next_ = 1;
  SimulatedStorage storage_{SimulatedStorageOptions{}};
  SimulatedStorage other_{SimulatedStorageOptions{}};
};

TEST_F(Copies, AreNotSealedWithAManifestReadersWouldRefuse) {
  ASSERT_TRUE(make_copy_directory(storage_, kName, kOwner));
  core::CopyManifest manifest;
  manifest.name = kName;
  manifest.owner = kOwner;
  manifest.common = '"' + std::string(core::kMaxCopyManifestBytes, 'x') + '"';

  const auto sealed = seal_copy(storage_, manifest, true);

  ASSERT_FALSE(sealed);
  EXPECT_THAT(sealed.error().message, HasSubstr("readers take at most 67108864"));
  EXPECT_TRUE(find_copies(storage_)->held.empty());
}

// Covers local-1, local-2.
TEST_F(Copies, AreFoundAndReadBack) {
  const auto bytes = write_copy(storage_);

  const auto found = find_copies(storage_);

  ASSERT_TRUE(found);
  EXPECT_THAT(found->held,
              ElementsAre(core::HeldCopy{kName, kOwner, bytes, {8}, core::layout_hash(structure_), {}}));
  std::vector<std::vector<std::byte>> values;
  const auto loaded = load(storage_, structure_, values);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(values, values_);
  EXPECT_EQ(files().size(), 3u) << "two files and the manifest";
}

// Covers strict-7.
TEST_F(Copies, OfAnotherStructureAreRefused) {
  write_copy(storage_);
  auto other = structure_;
  std::swap(other.pieces[0], other.pieces[1]);
  std::vector<std::vector<std::byte>> values;

  const auto loaded = load(storage_, other, values);

  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, Errc::mismatch);
}

TEST_F(Copies, ArriveWholeInChunksOfAnySize) {
  const auto bytes = write_copy(storage_);
  for (std::size_t chunk : {std::size_t{1}, std::size_t{7}, std::size_t{64}, std::size_t{100000}}) {
    SimulatedStorage target{SimulatedStorageOptions{}};
    CopySink sink(target, kName, kOwner, true);
    const auto stream = stream_of(storage_, bytes, chunk);

    for (std::size_t at = 0; at < stream.size(); at += chunk) {
      ASSERT_TRUE(sink.write(std::span(stream).subspan(at, std::min(chunk, stream.size() - at))));
      EXPECT_THAT(find_copies(target)->held, IsEmpty());
    }
    ASSERT_TRUE(sink.close());

    target.crash();
    std::vector<std::vector<std::byte>> values;
    ASSERT_TRUE(load(target, structure_, values)) << chunk;
    EXPECT_EQ(values, values_);
    EXPECT_TRUE(verify_copy(target, kName, kOwner));
  }
}

TEST_F(Copies, DoNotArriveWithAFlippedBitAnywhere) {
  const auto bytes = write_copy(storage_);
  const auto stream = stream_of(storage_, bytes, 4096);
  for (std::size_t at = 0; at < stream.size(); ++at) {
    auto altered = stream;
    altered[at] ^= std::byte{0x10};
    CopySink sink(other_, kName, kOwner, false);

    const auto written = sink.write(altered);
    const auto closed = sink.close();

    EXPECT_FALSE(closed) << at;
    EXPECT_TRUE(!written || at < 8) << at << ": only of a longer head more may come";
  }
  EXPECT_THAT(find_copies(other_)->held, IsEmpty());
}

TEST_F(Copies, DoNotArriveCutShortOrTooLong) {
  const auto bytes = write_copy(storage_);
  const auto stream = stream_of(storage_, bytes, 4096);
  for (std::size_t size = 0; size < stream.size(); ++size) {
    CopySink sink(other_, kName, kOwner, false);
    EXPECT_TRUE(sink.write(std::span(stream).first(size)));
    EXPECT_FALSE(sink.close()) << size;
  }
  auto longer = stream;
  longer.push_back(std::byte{0});
  CopySink sink(other_, kName, kOwner, false);
  EXPECT_FALSE(sink.write(longer));
  EXPECT_FALSE(sink.close());
}

TEST_F(Copies, OfAnotherSaveOrOwnerDoNotArrive) {
  const auto stream = stream_of(storage_, write_copy(storage_), 4096);
  CopySink wrong_owner(other_, kName, {4}, false);
  CopySink wrong_save(other_, {{12}, 0xabd}, kOwner, false);

  EXPECT_FALSE(wrong_owner.write(stream));
  EXPECT_FALSE(wrong_save.write(stream));
}

TEST_F(Copies, ThatWereAlteredAreNeitherReadNorSent) {
  const auto bytes = write_copy(storage_);
  for (const auto& name : files()) {
    for (int flip = 0; flip < 20; ++flip) {
      SimulatedStorageOptions options;
      options.seed = static_cast<std::uint64_t>(flip);
      SimulatedStorage target{options};
      write_copy(target);
      ASSERT_TRUE(target.rot(path_in(path_of(kName, kOwner), name)));

      EXPECT_FALSE(verify_copy(target, kName, kOwner)) << name;
      auto source = CopySource::open(target, kName, kOwner);
      std::vector<std::byte> stream(bytes);
      EXPECT_FALSE(source && (*source)->read(stream)) << name;
      if (!source) continue;  // the manifest
      std::vector<std::vector<std::byte>> values;
      const auto loaded = load(target, structure_, values);
      ASSERT_FALSE(loaded) << name;
      EXPECT_EQ(loaded.error().code, Errc::corrupt);
      EXPECT_THAT(loaded.error().message, HasSubstr(name));
    }
  }
}

TEST_F(Copies, ThatAreTornAreNotHeld) {
  write_copy(storage_);
  const auto file = path_in(path_of(kName, kOwner), files()[1]);
  ASSERT_TRUE(storage_.create(file));
  EXPECT_THAT(find_copies(storage_)->passed_over, ElementsAre(HasSubstr("has 0 bytes")));
  ASSERT_TRUE(storage_.remove(file));
  EXPECT_THAT(find_copies(storage_)->held, IsEmpty());
}

TEST_F(Copies, ReportUnreadableDirectoriesButIgnoreFilesOfTheirName) {
  write_copy(storage_);
  ASSERT_TRUE(storage_.create("step_00000009-0000000000000001"));
  FaultyStorage faulty(storage_);
  ASSERT_TRUE(find_copies(faulty));
  // The saves are listed first, then the copies of the newest one.
  faulty.fail_at(1, FaultyStorage::Fault::one_fails);

  const auto failing = find_copies(faulty);
  const auto working = find_copies(storage_);

  ASSERT_TRUE(failing);
  EXPECT_THAT(failing->held, IsEmpty());
  EXPECT_THAT(failing->passed_over,
              ElementsAre("no luck with operation 1: list step_00000012-0000000000000abc"));
  ASSERT_TRUE(working);
  EXPECT_EQ(working->held.size(), 1u);
  EXPECT_THAT(working->passed_over, IsEmpty());
}

TEST_F(Copies, InTheWrongPlaceAreNotHeld) {
  write_copy(storage_);
  ASSERT_TRUE(storage_.rename(path_of(kName, kOwner), path_of(kName, {4})));

  const auto found = find_copies(storage_);

  EXPECT_THAT(found->held, IsEmpty());
  EXPECT_THAT(found->passed_over, ElementsAre(HasSubstr("wrong place")));
}

TEST_F(Copies, ReplaceDamagedOnesOfTheSameName) {
  const auto stream = stream_of(storage_, write_copy(storage_), 4096);
  write_copy(other_);
  ASSERT_TRUE(other_.remove(path_in(path_of(kName, kOwner), core::kManifestName)));
  CopySink sink(other_, kName, kOwner, true);

  ASSERT_TRUE(sink.write(stream));
  ASSERT_TRUE(sink.close());

  EXPECT_TRUE(verify_copy(other_, kName, kOwner));
}

// Covers local-10.
TEST_F(Copies, ThatAreUnfinishedGoBeforeTheFirstSave) {
  write_copy(storage_);
  const core::CopyName left{{20}, 1};
  ASSERT_TRUE(make_copy_directory(storage_, left, kOwner));
  ASSERT_TRUE(storage_.create(path_in(unfinished_path_of(left, kOwner), "file")));
  ASSERT_TRUE(make_copy_directory(storage_, kName, {4}));
  ASSERT_TRUE(storage_.make_directory(directory_of(kName) + "/notes.tmp"));

  ASSERT_TRUE(clear_unfinished_copies(storage_));

  EXPECT_THAT(*storage_.list(directory_of(kName)), ElementsAre("notes.tmp", "rank_00003"));
  EXPECT_THAT(*storage_.list(directory_of(left)), IsEmpty());
}

// Covers local-10.
TEST_F(Copies, GoButForTheNewestOfTheJobsCourse) {
  const core::CopyName older{{10}, 1}, old{{11}, 1}, again{{12}, 0xabd}, left{{20}, 1};
  for (const auto& name : {older, old, kName, again, left}) write_copy(storage_, name);
  ASSERT_TRUE(storage_.make_directory("word"));

  ASSERT_TRUE(tidy_copies(storage_, kName, 2));

  EXPECT_THAT(*list_saves(storage_), ElementsAre(kName, old));
  ASSERT_TRUE(tidy_copies(storage_, kName, 1));
  EXPECT_THAT(*list_saves(storage_), ElementsAre(kName));
  EXPECT_THAT(*storage_.list(""), ElementsAre("step_00000012-0000000000000abc", "word"));
}

}  // namespace
}  // namespace troupe::actors
