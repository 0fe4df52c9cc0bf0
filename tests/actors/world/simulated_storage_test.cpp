#include "actors/world/simulation/storage.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/actors/world/transport/pair.hpp"

namespace troupe::actors {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string content(Storage& storage, std::string_view path) {
  auto bytes = storage.read(path, 0, SIZE_MAX);
  return bytes ? text_of(*bytes) : core::to_string(bytes.error().code);
}

void write(Storage& storage, std::string_view path, std::string_view text, bool sync) {
  auto file = std::move(*storage.create(path));
  ASSERT_TRUE(file->append(bytes_of(text)));
  if (sync) {
    ASSERT_TRUE(file->sync());
  }
}

TEST(SimulatedStorage, KeepsWhatWasSyncedThroughACrash) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SimulatedStorage storage({.seed = seed});
    ASSERT_TRUE(storage.make_directory("a"));
    write(storage, "a/file", std::string(5000, 'x'), true);
    ASSERT_TRUE(storage.sync_directory("a"));
    ASSERT_TRUE(storage.sync_directory(""));

    storage.crash();

    ASSERT_EQ(content(storage, "a/file"), std::string(5000, 'x')) << "seed " << seed;
    EXPECT_EQ(storage.used_bytes(), 5000U);
  }
}

/// What a crash can leave of a file of one sector which was "old" and is written as "new" without a sync.
TEST(SimulatedStorage, CrashLeavesUnsyncedDataOldNewTornOrGarbage) {
  std::set<std::string> seen;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SimulatedStorage storage({.seed = seed});
    write(storage, "file", "oldold", true);
    ASSERT_TRUE(storage.sync_directory(""));
    write(storage, "file", "newnew", false);
    EXPECT_EQ(content(storage, "file"), "newnew");
    storage.crash();
    std::string left = content(storage, "file");
    bool is_known = left == "oldold" || left == "newnew" || left == "newold";
    seen.insert(is_known ? left : "garbage");
  }

  EXPECT_THAT(seen, ElementsAre("garbage", "newnew", "newold", "oldold"));
}

TEST(SimulatedStorage, SectorsSurviveEachByItself) {
  std::set<std::string> seen;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SimulatedStorage storage({.seed = seed, .sector_bytes = 2});
    write(storage, "file", "aabb", true);
    ASSERT_TRUE(storage.sync_directory(""));
    write(storage, "file", "ccdd", false);
    storage.crash();
    seen.insert(content(storage, "file"));
  }

  EXPECT_TRUE(seen.contains("aadd"));
  EXPECT_TRUE(seen.contains("ccbb"));
}

TEST(SimulatedStorage, NameIsDurableOnlyOnceItsDirectoryIsSynced) {
  int lost = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SimulatedStorage storage({.seed = seed});
    write(storage, "file", "x", true);
    storage.crash();
    lost += content(storage, "file") == "not_found" ? 1 : 0;
  }

  EXPECT_GT(lost, 20);
  EXPECT_LT(lost, 80);
}

TEST(SimulatedStorage, ACrashFindsARenameDoneOrNotDone) {
  std::set<std::vector<std::string>> seen;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SimulatedStorage storage({.seed = seed});
    write(storage, "manifest.new", "2", true);
    ASSERT_TRUE(storage.sync_directory(""));
    ASSERT_TRUE(storage.rename("manifest.new", "manifest"));
    storage.crash();
    seen.insert(*storage.list(""));
  }

  EXPECT_THAT(seen, ElementsAre(ElementsAre("manifest"), ElementsAre("manifest.new")));
}

TEST(SimulatedStorage, OpenFilesEndWithACrash) {
  SimulatedStorage storage({});
  auto file = std::move(*storage.create("file"));

  storage.crash();

  EXPECT_FALSE(file->append(bytes_of("x")));
  EXPECT_FALSE(file->sync());
}

TEST(SimulatedStorage, AFailedSyncForgetsThoughALaterOneSucceeds) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SimulatedStorage storage({.seed = seed, .sync_failure = 1});
    auto file = std::move(*storage.create("file"));
    ASSERT_TRUE(file->append(bytes_of("lost")));
    ASSERT_FALSE(file->sync());
    storage.set_options({});
    ASSERT_TRUE(file->append(bytes_of("kept")));
    ASSERT_TRUE(file->sync());
    ASSERT_TRUE(storage.sync_directory(""));
    ASSERT_EQ(content(storage, "file"), "lostkept");

    storage.crash();

    ASSERT_EQ(content(storage, "file"), std::string(4, '\0') + "kept") << "seed " << seed;
  }
}

TEST(SimulatedStorage, ALyingDiskKeepsNothing) {
  int kept = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SimulatedStorage storage({.seed = seed});
    storage.set_lying(true);
    write(storage, "file", "x", true);
    ASSERT_TRUE(storage.sync_directory(""));
    storage.crash();
    kept += content(storage, "file") == "x" ? 1 : 0;
  }

  EXPECT_LT(kept, 60);
}

TEST(SimulatedStorage, AFullDiskTakesWhatFitsAndSaysSo) {
  SimulatedStorage storage({.capacity_bytes = 10});
  auto file = std::move(*storage.create("file"));
  ASSERT_TRUE(file->append(bytes_of("12345678")));

  auto full = file->append(bytes_of("abc"));

  ASSERT_FALSE(full);
  EXPECT_THAT(full.error().message, HasSubstr("no space left"));
  EXPECT_EQ(content(storage, "file"), "12345678ab");
  ASSERT_TRUE(storage.remove("file"));
  auto again = std::move(*storage.create("file"));
  EXPECT_TRUE(again->append(bytes_of("0123456789")));
}

TEST(SimulatedStorage, AFailedWriteLeavesSomeOfItsBytes) {
  SimulatedStorage storage({.seed = 5, .write_failure = 1});
  auto file = std::move(*storage.create("file"));

  ASSERT_FALSE(file->append(std::vector<std::byte>(1000)));

  EXPECT_LE(*storage.size("file"), 1000U);
}

TEST(SimulatedStorage, RotFlipsOneBitForGood) {
  SimulatedStorage storage({});
  write(storage, "file", std::string(100, '\0'), true);
  ASSERT_TRUE(storage.sync_directory(""));

  ASSERT_TRUE(storage.rot("file"));
  storage.crash();

  int bits = 0;
  for (char byte : content(storage, "file")) bits += std::popcount(static_cast<unsigned char>(byte));
  EXPECT_EQ(bits, 1);
}

}  // namespace
}  // namespace troupe::actors
