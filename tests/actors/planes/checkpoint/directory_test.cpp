#include "actors/planes/checkpoint/directory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "actors/world/simulation/storage.hpp"
#include "actors/world/storage/holds.hpp"
#include "actors/world/storage/posix.hpp"
#include "core/errors.hpp"
#include "tests/actors/planes/checkpoint/faulty_storage.hpp"
#include "tests/actors/planes/checkpoint/stored_checkpoint.hpp"

namespace troupe::actors {
namespace {

using core::Errc;
using core::StepCount;
using testing::ElementsAre;
using testing::HasSubstr;
using Fault = FaultyStorage::Fault;

constexpr std::uint64_t kCrashes = 6;
const std::vector<Fault> kFaults{Fault::one_fails, Fault::one_lies, Fault::all_follow};
const std::string kTracker = "latest_checkpointed_iteration.txt";

SimulatedStorage disk_of(std::uint64_t seed) {
  SimulatedStorageOptions options;
  options.seed = seed;
  options.sector_bytes = 64;
  return SimulatedStorage(options);
}

/// Does `act` once for every operation that it asks of the disk, which fails at this one in every way; then
/// the power goes, and `check` looks. `prepare` makes the disk.
void at_every_operation(const std::function<void(Storage&)>& prepare,
                        const std::function<core::Result<void>(Storage&)>& act,
                        const std::function<void(SimulatedStorage&, bool succeeded)>& check) {
  for (auto fault : kFaults) {
    for (std::uint64_t at = 0, count = 1; at < count; ++at) {
      for (std::uint64_t seed = 0; seed < kCrashes; ++seed) {
        SCOPED_TRACE(fmt::format("fault {} at operation {}, crash {}", static_cast<int>(fault), at, seed));
        auto disk = disk_of(seed);
        prepare(disk);
        FaultyStorage faulty(disk);
        faulty.fail_at(at, fault);

        const bool succeeded = act(faulty).has_value();
        // One more than there are: once nothing fails.
        count = std::max(count, faulty.operations() + 1);
        disk.crash();

        check(disk, succeeded);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(CheckpointDirectory, HoldsOldStateOrNewCheckpointWhateverFails) {
  const auto old = small_checkpoint(3);
  const auto next = small_checkpoint(5);

  at_every_operation([&](Storage& disk) { ASSERT_TRUE(store(disk, old)); },
                     [&](Storage& disk) { return store(disk, next); },
                     [&](SimulatedStorage& disk, bool succeeded) {
                       EXPECT_TRUE(is_whole(disk, old));
                       const auto steps = steps_in(disk);
                       const bool is_there = steps.front() == 5;
                       EXPECT_EQ(steps.size(), is_there ? 2u : 1u);
                       EXPECT_TRUE(is_there || !succeeded);
                       EXPECT_TRUE(!is_there || is_whole(disk, next));
                     });
}

TEST(CheckpointDirectory, CommitsNoManifestThatReadersWouldRefuse) {
  SimulatedStorage disk({});
  ASSERT_TRUE(disk.make_directory("step_00000005.tmp-1"));

  const auto refused = commit_checkpoint(disk, "step_00000005.tmp-1", "step_00000005", "a manifest", 9);

  ASSERT_FALSE(refused);
  EXPECT_EQ(
      refused.error().message,
      "the manifest has 10 bytes, and readers take at most 9: it describes too many parts of tensors, or "
      "too large values");
  EXPECT_TRUE(list_checkpoints(disk)->empty());
  EXPECT_TRUE(commit_checkpoint(disk, "step_00000005.tmp-1", "step_00000005", "a manifest", 10));
}

TEST(CheckpointDirectory, AllowsSavingTheStepOfAFailedSaveAgain) {
  const auto next = small_checkpoint(5);

  at_every_operation([&](Storage&) {}, [&](Storage& disk) { return store(disk, next); },
                     [&](SimulatedStorage& disk, bool) {
                       ASSERT_TRUE(clear_unfinished(disk));
                       const auto stored = store(disk, next);
                       EXPECT_TRUE(stored || stored.error().code == Errc::already_exists)
                           << stored.error().message;
                       EXPECT_TRUE(is_whole(disk, next));
                       EXPECT_EQ(steps_in(disk).size(), 1u);
                     });
}

TEST(CheckpointDirectory, ReplacesADamagedOneOrLeavesItVisible) {
  const auto next = small_checkpoint(5);

  at_every_operation(
      [&](Storage& disk) {
        ASSERT_TRUE(store(disk, next));
        ASSERT_TRUE(static_cast<SimulatedStorage&>(disk).rot("step_00000005/shard_00000_0.safetensors"));
      },
      [&](Storage& disk) {
        auto again = next;
        again.manifest.save = core::hex64(99);
        return store(disk, again);
      },
      [&](SimulatedStorage& disk, bool succeeded) {
        const auto manifest = check_quickly(disk, "step_00000005");
        const bool is_new = manifest && manifest->save == core::hex64(99);
        EXPECT_TRUE(is_new || !succeeded);
        const bool is_good = manifest && verify_checkpoint(disk, "step_00000005", *manifest);
        EXPECT_EQ(is_good, is_new);
        const auto names = *disk.list("");
        const auto aside = std::count_if(names.begin(), names.end(), [](const auto& name) {
          return name.find("step_00000005.damaged-") == 0;
        });
        EXPECT_EQ(aside, is_new ? 1 : aside) << "people may want to look at what was damaged";
      });
}

TEST(CheckpointDirectory, NeverReplacesAGoodOneThatIsTemporarilyUnreadable) {
  const auto good = small_checkpoint(5);

  at_every_operation([&](Storage& disk) { ASSERT_TRUE(store(disk, good)); },
                     [&](Storage& disk) {
                       auto again = good;
                       again.manifest.save = core::hex64(99);
                       return store(disk, again);
                     },
                     [&](SimulatedStorage& disk, bool succeeded) {
                       EXPECT_FALSE(succeeded);
                       EXPECT_TRUE(is_whole(disk, good));
                     });
}

TEST(CheckpointDirectory, NeverReplacesOneOfAnotherVersion) {
  auto disk = disk_of(0);
  ASSERT_TRUE(store(disk, small_checkpoint(5)));
  auto text = core::to_text(small_checkpoint(5).manifest);
  const std::string version = "\"version\":1";
  const auto at = text.find(version);
  ASSERT_NE(at, std::string::npos) << text;
  text.replace(at, version.size(), "\"version\":2");
  ASSERT_TRUE(write_whole(disk, "step_00000005/manifest.json", core::bytes_in(text)));

  const auto again = store(disk, small_checkpoint(5));

  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, Errc::mismatch);
}

// Covers ranks-17.
TEST(CheckpointDirectory, PruningKeepsWhatRetentionSaysWhateverFails) {
  std::vector<core::SavedJob> stored;
  for (int step : {2, 4, 6, 8, 10}) stored.push_back(small_checkpoint(step));

  at_every_operation(
      [&](Storage& disk) {
        for (const auto& saved : stored) ASSERT_TRUE(store(disk, saved));
      },
      [&](Storage& disk) -> core::Result<void> {
        TRY(prune_checkpoints(disk, {2, 4}));
        return {};
      },
      [&](SimulatedStorage& disk, bool) {
        for (int kept : {4, 8, 10}) EXPECT_TRUE(is_whole(disk, small_checkpoint(kept))) << kept;
        for (auto step : steps_in(disk)) EXPECT_TRUE(is_whole(disk, small_checkpoint(step))) << step;
        ASSERT_TRUE(clear_unfinished(disk));
        const auto names = *disk.list("");
        for (const auto& name : names) EXPECT_EQ(name.size(), std::string("step_00000010").size());
      });
}

TEST(CheckpointDirectory, ClearingTouchesNoCheckpointWhateverFails) {
  at_every_operation(
      [&](Storage& disk) {
        ASSERT_TRUE(store(disk, small_checkpoint(3)));
        ASSERT_TRUE(store(disk, small_checkpoint(5)));
        ASSERT_TRUE(disk.rename("step_00000005", "step_00000005.removed"));
        ASSERT_TRUE(disk.make_directory("step_00000007.tmp-77"));
        ASSERT_TRUE(write_whole(disk, "step_00000007.tmp-77/shard", core::bytes_in("x")));
        ASSERT_TRUE(disk.sync_directory("step_00000007.tmp-77"));
        ASSERT_TRUE(disk.make_directory("step_00000001.damaged-11"));
        ASSERT_TRUE(disk.make_directory("other.tmp-1"));
        ASSERT_TRUE(disk.sync_directory(""));
      },
      [&](Storage& disk) -> core::Result<void> {
        TRY(clear_unfinished(disk));
        return {};
      },
      [&](SimulatedStorage& disk, bool) {
        EXPECT_TRUE(is_whole(disk, small_checkpoint(3)));
        EXPECT_THAT(steps_in(disk), ElementsAre(3));
        ASSERT_TRUE(clear_unfinished(disk));
        EXPECT_THAT(*disk.list(""), ElementsAre("other.tmp-1", "step_00000001.damaged-11", "step_00000003"));
      });
}

TEST(CheckpointDirectory, TheTrackerIsOnlyAHint) {
  at_every_operation([&](Storage& disk) { ASSERT_TRUE(store(disk, small_checkpoint(3))); },
                     [&](Storage& disk) { return write_tracker(disk, StepCount{3}); },
                     [&](SimulatedStorage& disk, bool succeeded) {
                       EXPECT_THAT(steps_in(disk), ElementsAre(3));
                       EXPECT_TRUE(!succeeded || bytes_at(disk, kTracker).size() == 2);
                     });
  for (const char* lie : {"", "9\n", "nonsense", "-1"}) {
    auto disk = disk_of(0);
    ASSERT_TRUE(store(disk, small_checkpoint(3)));
    ASSERT_TRUE(write_whole(disk, kTracker, core::bytes_in(lie)));

    EXPECT_THAT(steps_in(disk), ElementsAre(3)) << lie;
  }
}

// Covers save-26, ranks-17.
TEST(CheckpointDirectory, PruningKeepsTheNewestAndThoseOfRoundSteps) {
  auto disk = disk_of(0);
  for (int step : {2, 4, 6, 8, 10}) ASSERT_TRUE(store(disk, small_checkpoint(step)));

  const auto removed = prune_checkpoints(disk, {2, 4});

  ASSERT_TRUE(removed);
  EXPECT_THAT(*removed, ElementsAre("step_00000006", "step_00000002"));
  EXPECT_THAT(steps_in(disk), ElementsAre(10, 8, 4));
}

// Covers ranks-17.
TEST(CheckpointDirectory, OnlyGoodOnesCountWhenPruning) {
  auto disk = disk_of(0);
  for (int step : {1, 2, 3, 4}) ASSERT_TRUE(store(disk, small_checkpoint(step)));
  ASSERT_TRUE(disk.remove("step_00000004/manifest.json"));
  ASSERT_TRUE(write_whole(disk, "step_00000003/shard_00000_0.safetensors", core::bytes_in("short")));

  const auto would = prune_checkpoints(disk, {1, 0}, true);
  EXPECT_THAT(steps_in(disk), ElementsAre(4, 3, 2, 1)) << "a dry run removes nothing";
  const auto removed = prune_checkpoints(disk, {1, 0});

  ASSERT_TRUE(removed);
  EXPECT_EQ(*would, *removed);
  EXPECT_THAT(*removed, ElementsAre("step_00000001"));
  EXPECT_THAT(steps_in(disk), ElementsAre(4, 3, 2));
  EXPECT_TRUE(is_whole(disk, small_checkpoint(2)));
}

TEST(CheckpointDirectory, KeepsTheLastCommitBesideNewerForeignOnes) {
  auto disk = disk_of(0);
  for (int step : {3, 4, 5, 6}) ASSERT_TRUE(store(disk, small_checkpoint(step)));
  // Training went back to step 3, perhaps because the bits of 5 and 6 are not what they were.
  ASSERT_TRUE(disk.rot("step_00000005/shard_00000_0.safetensors"));
  ASSERT_TRUE(disk.rot("step_00000006/shard_00001_0.safetensors"));

  const auto removed = prune_checkpoints(disk, {1, 0}, false, StepCount{4});

  ASSERT_TRUE(removed);
  EXPECT_THAT(*removed, ElementsAre("step_00000003"));
  EXPECT_TRUE(is_whole(disk, small_checkpoint(4)));
}

TEST(CheckpointDirectory, RetentionOfNothingKeepsAll) {
  auto disk = disk_of(0);
  for (int step : {1, 2, 3}) ASSERT_TRUE(store(disk, small_checkpoint(step)));

  ASSERT_TRUE(prune_checkpoints(disk, {}));
  ASSERT_TRUE(prune_checkpoints(disk, {0, 2}));
  ASSERT_TRUE(prune_checkpoints(disk, {-1, 0}));

  EXPECT_THAT(steps_in(disk), ElementsAre(3, 2, 1));
}

TEST(CheckpointDirectory, NeitherCountsNorRemovesAnUnreadableOne) {
  auto disk = disk_of(0);
  for (int step : {1, 2, 3}) ASSERT_TRUE(store(disk, small_checkpoint(step)));
  auto options = SimulatedStorageOptions{};
  options.read_failure = 1;
  disk.set_options(options);

  const auto removed = prune_checkpoints(disk, {1, 0});

  EXPECT_TRUE(!removed || removed->empty());
  EXPECT_THAT(steps_in(disk), ElementsAre(3, 2, 1));
}

TEST(CheckpointDirectory, KnowsCheckpointsByTheirNames) {
  auto disk = disk_of(0);
  for (const char* name :
       {"step_00000003", "step_123456789012", "step_00000007.tmp-1", "step_", "step_-0000001", "step_0x5",
        "step_99999999999999999999", "step_00000002.removed", "other"})
    ASSERT_TRUE(disk.make_directory(name));

  EXPECT_THAT(steps_in(disk), ElementsAre(123456789012, 3));
}

TEST(CheckpointDirectory, IsNotClearWhileSomebodyWritesThere) {
  std::string folder = (std::filesystem::temp_directory_path() / "troupe-checkpoints-XXXXXX").string();
  const std::string directory = mkdtemp(folder.data());
  const auto storage = std::move(*PosixStorage::open(directory));
  const std::string name = "step_00000007.tmp-0123456789abcdef";
  ASSERT_TRUE(storage->make_directory(name));
  {
    const Hold hold = hold_directory(*storage, name);
    EXPECT_EQ(clear_unfinished(*storage).value(), false);
    EXPECT_THAT(*storage->list(""), ElementsAre(name));
  }
  EXPECT_EQ(clear_unfinished(*storage).value(), true);
  EXPECT_THAT(*storage->list(""), testing::IsEmpty());
  std::filesystem::remove_all(directory);
}

TEST(CheckpointDirectory, SaysWhichFileIsMissingOrShort) {
  auto disk = disk_of(0);
  ASSERT_TRUE(store(disk, small_checkpoint(3)));
  ASSERT_TRUE(write_whole(disk, "step_00000003/shard_00001_0.safetensors", core::bytes_in("short")));
  const auto shorter = check_quickly(disk, "step_00000003");
  ASSERT_TRUE(disk.remove("step_00000003/shard_00001_0.safetensors"));
  const auto missing = check_quickly(disk, "step_00000003");

  ASSERT_FALSE(shorter);
  EXPECT_EQ(shorter.error().code, Errc::corrupt);
  EXPECT_THAT(shorter.error().message, HasSubstr("step_00000003/shard_00001_0.safetensors has 5 bytes"));
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Errc::corrupt);
  EXPECT_EQ(check_quickly(disk, "step_00000009").error().code, Errc::not_found);
}

TEST(CheckpointDirectory, DoesTheSameInTheFileSystem) {
  std::string name = (std::filesystem::temp_directory_path() / "troupe-checkpoints-XXXXXX").string();
  const std::string directory = mkdtemp(name.data());
  const auto storage = std::move(*PosixStorage::open(directory));
  for (int step : {1, 2, 3}) ASSERT_TRUE(store(*storage, small_checkpoint(step)));

  const auto again = store(*storage, small_checkpoint(3));
  const auto cleared = clear_unfinished(*storage);
  const auto removed = prune_checkpoints(*storage, {1, 0});
  const auto tracked = write_tracker(*storage, StepCount{3});
  const bool whole = is_whole(*storage, small_checkpoint(3));
  std::filesystem::resize_file(directory + "/step_00000003/shard_00000_0.safetensors", 7);
  const auto damaged = check_quickly(*storage, "step_00000003");
  const auto replaced = store(*storage, small_checkpoint(3));
  const bool is_whole_again = is_whole(*storage, small_checkpoint(3));
  const auto names = *storage->list("");
  std::filesystem::remove_all(directory);

  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, Errc::already_exists);
  EXPECT_TRUE(cleared);
  ASSERT_TRUE(removed) << removed.error().message;
  EXPECT_THAT(*removed, ElementsAre("step_00000002", "step_00000001"));
  EXPECT_TRUE(tracked);
  EXPECT_TRUE(whole);
  EXPECT_FALSE(damaged);
  EXPECT_TRUE(replaced) << replaced.error().message;
  EXPECT_TRUE(is_whole_again);
  EXPECT_THAT(names, ElementsAre(kTracker, "step_00000003", HasSubstr("step_00000003.damaged-")));
}

}  // namespace
}  // namespace troupe::actors
