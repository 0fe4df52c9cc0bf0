#include "actors/world/storage/posix.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>

#include "actors/planes/checkpoint/directory.hpp"
#include "actors/planes/replica/copies.hpp"
#include "tests/support/child.hpp"
#include "tests/support/direct_writes.hpp"
#include "tests/support/fsync_log.hpp"

namespace troupe::actors {
namespace {

namespace fs = std::filesystem;

using core::Errc;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using tests::Fsync;
using tests::FsyncLog;

class OnDisk : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "troupe-posix-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    above_ = fs::canonical(name);
    root_ = above_ / "root";
    fs::create_directories(root_ / "inner");
    storage_ = PosixStorage::open(root_).value();
  }
  void TearDown() override {
    std::error_code ignored;
    fs::remove_all(above_, ignored);
  }
  void write(const fs::path& path, std::string_view text) { std::ofstream(path, std::ios::binary) << text; }
  static std::string content(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string at(const std::string& name) const { return name.empty() ? root_ : root_ / name; }

  fs::path above_;
  fs::path root_;
  std::unique_ptr<PosixStorage> storage_;
};

using PosixFiles = OnDisk;

TEST_F(PosixFiles, AreReadUncachedAtAnyOffsetAndAddress) {
  std::string whole(3'000'017, '\0');
  for (std::size_t i = 0; i < whole.size(); ++i) whole[i] = static_cast<char>(i * 2654435761U >> 13);
  write(root_ / "long", whole);
  const auto storage = PosixStorage::open(root_, Links::refuse, Reads::past_cache).value();
  std::string memory(whole.size() + 64, '\0');
  for (const std::size_t offset : {0UL, 1UL, 4095UL, 4096UL, 1'048'579UL, 2'700'000UL}) {
    for (const std::size_t bytes : {262'144UL, 1'048'576UL, 2'000'003UL, 3'000'017UL}) {
      for (const std::size_t shift : {0UL, 3UL}) {
        const auto place = std::span(memory).subspan(shift, bytes);
        std::fill(memory.begin(), memory.end(), '\0');

        const auto count = storage->read_into("long", offset, std::as_writable_bytes(place));

        ASSERT_TRUE(count) << count.error().message;
        const auto expected = std::string_view(whole).substr(offset, bytes);
        ASSERT_EQ(*count, expected.size()) << offset << " " << bytes;
        ASSERT_EQ(std::string_view(place.data(), *count), expected) << offset << " " << bytes;
      }
    }
  }
  const auto none = storage->read_into("long", whole.size() + 5, std::as_writable_bytes(std::span(memory)));
  ASSERT_TRUE(none);
  EXPECT_EQ(*none, 0U);
}

/// What each way to reach a file answers; "good" when it does.
std::vector<std::string> answers(PosixStorage& storage, const std::string& path) {
  std::array<std::byte, 4> memory{};
  std::vector<std::string> said;
  const auto note = [&](const auto& result) {
    said.emplace_back(result ? "good" : core::to_string(result.error().code));
  };
  note(storage.read(path, 0, 4));
  note(storage.read_into(path, 0, memory));
  note(storage.size(path));
  note(storage.open_file(path));
  return said;
}

TEST_F(PosixFiles, APipeIsNotWaitedFor) {
  ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);

  const auto end = tests::run_in_child(
      [&] {
        const auto read = answers(*storage_, "pipe");
        const bool refused =
            std::all_of(read.begin(), read.end(), [](const auto& said) { return said == "corrupt"; });
        return refused && !storage_->create("pipe") && !storage_->list("pipe") ? 0 : 1;
      },
      {.seconds = 20});

  EXPECT_EQ(end.exit_code, 0) << "142: it waited for a writer";
}

TEST_F(PosixFiles, WhatIsNoRegularFileIsRefusedByName) {
  auto devices = PosixStorage::open("/dev").value();

  const auto zeros = devices->read("zero", 0, 4);

  ASSERT_FALSE(zeros);
  EXPECT_EQ(zeros.error().code, Errc::corrupt);
  EXPECT_EQ(zeros.error().message,
            "\"/dev/zero\" is a pipe, a socket or a device, no regular file; remove it");
  EXPECT_THAT(answers(*devices, "null"), ElementsAre("corrupt", "corrupt", "corrupt", "corrupt"));
}

TEST_F(PosixFiles, ErrorsNameThePathWithSingleSlashes) {
  const auto named = [](const std::string& directory) {
    return PosixStorage::open(directory).value()->size("troupe-is-not-here").error().message;
  };

  EXPECT_THAT(named("/"), HasSubstr("\"/troupe-is-not-here\""));
  EXPECT_THAT(named(root_.string() + "/"), HasSubstr("\"" + at("troupe-is-not-here") + "\""));
}

TEST_F(PosixFiles, LinksAreFollowedOnlyWhenThatIsAskedFor) {
  write(above_ / "secret", "word");
  fs::create_symlink(above_ / "secret", root_ / "to_file");
  fs::create_symlink(above_, root_ / "to_directory");
  fs::create_symlink("to_file", root_ / "inside");
  auto following = PosixStorage::open(root_, Links::follow).value();

  for (const std::string path : {"to_file", "to_directory/secret", "inside"}) {
    EXPECT_THAT(answers(*storage_, path), ElementsAre("corrupt", "corrupt", "corrupt", "corrupt")) << path;
    EXPECT_THAT(answers(*following, path), ElementsAre("good", "good", "good", "good")) << path;
  }
  const auto refused = storage_->size("to_file");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("; it is a link, which"));
  EXPECT_FALSE(storage_->list("to_directory"));
  EXPECT_FALSE(storage_->create("to_file"));
  EXPECT_EQ(content(above_ / "secret"), "word");
}

TEST_F(PosixFiles, LinksToBlobsLeadNowhereElse) {
  const fs::path snapshot = root_ / "snapshots" / "0123abcd";
  fs::create_directories(snapshot / "inner");
  fs::create_directories(root_ / "blobs");
  write(root_ / "blobs" / "45ef", "word");
  write(root_ / "secret", "secret");
  write(snapshot / "plain", "word");
  fs::create_symlink("../../blobs/45ef", snapshot / "blob");
  fs::create_symlink("../../secret", snapshot / "beside");
  fs::create_symlink("../../blobs/../secret", snapshot / "back");
  fs::create_symlink("../../blobs/chain", snapshot / "chained");
  fs::create_symlink("../secret", root_ / "blobs" / "chain");
  fs::create_symlink(root_ / "blobs" / "45ef", snapshot / "absolute");
  fs::create_symlink("../../../blobs/45ef", snapshot / "inner" / "deep");
  auto storage = PosixStorage::open(snapshot, Links::to_blobs).value();

  for (const std::string path : {"blob", "plain"}) {
    EXPECT_THAT(answers(*storage, path), ElementsAre("good", "good", "good", "good")) << path;
  }
  for (const std::string path : {"beside", "back", "chained", "absolute", "inner/deep"}) {
    EXPECT_THAT(answers(*storage, path), ElementsAre("corrupt", "corrupt", "corrupt", "corrupt")) << path;
  }
  EXPECT_FALSE(storage->create("blob"));
  EXPECT_EQ(content(root_ / "blobs" / "45ef"), "word");
  fs::rename(root_ / "blobs", root_ / "elsewhere");
  fs::create_symlink("elsewhere", root_ / "blobs");
  EXPECT_THAT(answers(*storage, "blob"), ElementsAre("corrupt", "corrupt", "corrupt", "corrupt"));
}

TEST_F(PosixFiles, RemovingATreeLeavesWhatItsLinksPointAt) {
  write(above_ / "secret", "word");
  fs::create_symlink(above_, root_ / "inner" / "out");

  ASSERT_TRUE(remove_tree(*storage_, "inner"));

  EXPECT_EQ(content(above_ / "secret"), "word");
  EXPECT_FALSE(fs::exists(root_ / "inner"));
}

TEST_F(PosixFiles, AreWholeWhereDirectWritesTurnOutImpossible) {
  // Sizes of the parts that are appended.
  for (const std::vector<std::size_t>& parts : {std::vector<std::size_t>{448, 10000, 5001},
                                                {448, 10000},
                                                {4096, 1, 4095, 4097},
                                                {1, 4095, 12288, 3}}) {
    std::string whole(std::accumulate(parts.begin(), parts.end(), std::size_t{0}), '\0');
    for (std::size_t i = 0; i < whole.size(); ++i) whole[i] = static_cast<char>(i * 2654435761U >> 13);
    for (const bool with_sync : {false, true}) {
      auto file = storage_->create("file").value();
      const tests::RefusedDirectWrites refused;

      auto rest = std::as_bytes(std::span(whole));
      for (const auto bytes : parts) {
        ASSERT_TRUE(file->append(rest.first(bytes)));
        rest = rest.subspan(bytes);
      }
      if (with_sync) {
        ASSERT_TRUE(file->sync());
      }
      ASSERT_TRUE(file->close());

      EXPECT_TRUE(content(at("file")) == whole)
          << ::testing::PrintToString(parts) << " " << content(at("file")).size() << " of " << whole.size();
      if (refused.count() == 0) GTEST_SKIP() << "the file system opens no file for direct writes";
    }
  }
}

using PosixDurability = OnDisk;

TEST_F(PosixDurability, SyncFollowsTheLastByteOfAnyFile) {
  for (const std::size_t bytes : {0, 1, 4095, 4096, 4097, 10000}) {
    const std::string text(bytes, 'x');
    const auto half = std::as_bytes(std::span(text)).first(bytes / 2);
    auto file = storage_->create("file");
    ASSERT_TRUE(file);
    FsyncLog log;

    ASSERT_TRUE((*file)->append(half));
    ASSERT_TRUE((*file)->append(std::as_bytes(std::span(text)).subspan(half.size())));
    EXPECT_THAT(log.take(), IsEmpty());
    ASSERT_TRUE((*file)->sync());

    EXPECT_THAT(log.take(), ElementsAre(Fsync{at("file"), bytes}));
    EXPECT_EQ(content(at("file")), text) << "before it is closed";
    ASSERT_TRUE((*file)->append(std::as_bytes(std::span(text))));
    ASSERT_TRUE((*file)->sync());
    EXPECT_THAT(log.take(), ElementsAre(Fsync{at("file"), 2 * bytes}));
    ASSERT_TRUE((*file)->close());
  }
}

TEST_F(PosixDurability, SyncOfADirectoryReachesThatDirectory) {
  FsyncLog log;

  ASSERT_TRUE(storage_->sync_directory("inner"));
  ASSERT_TRUE(storage_->sync_directory(""));

  EXPECT_THAT(log.take(), ElementsAre(Fsync{at("inner"), 0}, Fsync{at(""), 0}));
}

TEST_F(PosixDurability, NewDirectoriesAreDurableInTheirParents) {
  FsyncLog log;

  ASSERT_TRUE(PosixStorage::open_or_make(at("a/b")));
  EXPECT_THAT(log.take(), ElementsAre(Fsync{at(""), 0}, Fsync{at("a"), 0}));

  ASSERT_TRUE(PosixStorage::open_or_make(at("a/b/c/")));
  EXPECT_THAT(log.take(), ElementsAre(Fsync{at("a/b"), 0}));

  ASSERT_TRUE(PosixStorage::open_or_make(at("a/b")));
  EXPECT_THAT(log.take(), IsEmpty()) << "it was there";

  const auto before = fs::current_path();
  fs::current_path(root_);
  EXPECT_TRUE(PosixStorage::open_or_make("d/e"));
  fs::current_path(before);
  EXPECT_THAT(log.take(), ElementsAre(Fsync{at(""), 0}, Fsync{at("d"), 0}));
}

TEST_F(PosixDurability, CommitSyncsManifestThenItsDirectoryThenTheRoot) {
  ASSERT_TRUE(storage_->make_directory("step_00000005.tmp-1"));
  FsyncLog log;

  ASSERT_TRUE(commit_checkpoint(*storage_, "step_00000005.tmp-1", "step_00000005", "text"));
  EXPECT_THAT(log.take(), ElementsAre(Fsync{at("step_00000005.tmp-1/manifest.json.tmp"), 4},
                                      Fsync{at("step_00000005.tmp-1"), 0}, Fsync{at(""), 0}));

  ASSERT_TRUE(write_tracker(*storage_, core::StepCount{5}));
  EXPECT_THAT(log.take(),
              ElementsAre(Fsync{at("latest_checkpointed_iteration.txt.tmp"), 2}, Fsync{at(""), 0}));
}

TEST_F(PosixDurability, LocalCopiesAreSyncedUpToRootOnRequest) {
  core::CopyManifest manifest;
  manifest.name = {{12}, 0xabc};
  manifest.owner = {3};
  manifest.world = {8};
  const auto bytes = core::to_text(manifest).size();
  const std::string save = "step_00000012-0000000000000abc";
  for (const bool sync : {false, true}) {
    ASSERT_TRUE(make_copy_directory(*storage_, manifest.name, manifest.owner));
    FsyncLog log;

    ASSERT_TRUE(seal_copy(*storage_, manifest, sync));

    if (!sync) {
      EXPECT_THAT(log.take(), IsEmpty());
      continue;
    }
    EXPECT_THAT(log.take(),
                ElementsAre(Fsync{at(save + "/rank_00003.tmp/manifest.json"), bytes},
                            Fsync{at(save + "/rank_00003.tmp"), 0}, Fsync{at(save), 0}, Fsync{at(""), 0}));
  }
}

}  // namespace
}  // namespace troupe::actors
