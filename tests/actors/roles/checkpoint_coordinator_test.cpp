#include "actors/roles/checkpoint_coordinator.hpp"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "core/checkpoint/manifest.hpp"
#include "tests/actors/roles/coordinator_probe.hpp"

namespace troupe::actors {
namespace {

using core::Errc;
using messages::FilesDurable;
using messages::SaveDirectoryMade;
using messages::SaveOver;
using messages::SavePlanned;
using messages::StructurePart;
using testing::HasSubstr;

const std::vector<std::string> kStates{"idle", "gathering", "preparing", "writing", "committing"};

class CheckpointCoordinatorIn : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    coordinator.drive_to(GetParam());
    ASSERT_EQ(coordinator.machine.state(), GetParam());
  }
  bool is(std::string_view state) const { return GetParam() == state; }
  Coordinator coordinator;
};

INSTANTIATE_TEST_SUITE_P(EveryState, CheckpointCoordinatorIn, testing::ValuesIn(kStates),
                         [](const auto& state) { return state.param; });

TEST_P(CheckpointCoordinatorIn, WhatDoesNotBelongThereChangesNothing) {
  std::vector<messages::Message> strangers{
      announced(2, 1, half(0)),
      announced(-1, 1, half(0)),
      StructurePart{99, 0, 1, "{}"},
      StructurePart{hash_of(half(0)), 3, 2, "x"},
      StructurePart{hash_of(half(0)), 0, 0, ""},
      StructurePart{hash_of(half(0)), 0, 4'000'000'000U, "x"},
      SaveDirectoryMade{7, {}},
      SaveDirectoryMade{7, kNoSpace},
      FilesDurable{7, {0}, {1}, {}},
      FilesDurable{1, {2}, {1}, {}},
      FilesDurable{1, {-1}, {1}, {}},
      messages::SaveFailed{7, {0}, kNoSpace},
      messages::SaveFailed{1, {2}, kNoSpace},
      messages::SaveCommitDone{7, {}},
      messages::Published{core::Step{4}, 0},
  };
  if (!is("idle")) strangers.emplace_back(announced(0, 1, half(0)));
  if (!is("preparing")) strangers.emplace_back(SaveDirectoryMade{1, kNoSpace});
  if (!is("writing")) strangers.emplace_back(FilesDurable{1, {0}, {5}, {}});
  if (!is("committing")) strangers.emplace_back(messages::SaveCommitDone{1, {}});
  if (is("committing")) strangers.emplace_back(messages::SaveFailed{1, {0}, kNoSpace});

  for (const auto& stranger : strangers) {
    EXPECT_TRUE(coordinator.say(stranger).empty()) << messages::name_of(stranger);
    EXPECT_EQ(coordinator.machine.state(), GetParam()) << messages::name_of(stranger);
  }
}

TEST_P(CheckpointCoordinatorIn, DeadlineEndsTheSaveAndNamesWhoIsMissing) {
  const std::map<std::string, std::string> words{{"gathering", "rank 1 to take part"},
                                                 {"preparing", "the directory step_00000005.tmp-"},
                                                 {"writing", "rank 0, 1 to write"},
                                                 {"committing", "the disk to commit step_00000005.tmp-"}};

  const auto effects = coordinator.timer();

  EXPECT_EQ(coordinator.machine.state(), "idle");
  if (is("idle")) {
    EXPECT_TRUE(effects.empty());
    return;
  }
  const auto ends = sent<SaveOver>(effects);
  ASSERT_EQ(ends.size(), is("gathering") ? 1u : 2u);
  EXPECT_EQ(ends[0].failure.code, Errc::timeout);
  EXPECT_THAT(ends[0].failure.message, HasSubstr(words.at(GetParam())));
  EXPECT_THAT(ends[0].failure.message, HasSubstr("within 90 s"));
}

TEST(CheckpointCoordinator, FirstFailureEndsAndClearsTheSaveForAll) {
  for (const std::string state : {"gathering", "preparing", "writing"}) {
    Coordinator coordinator;
    coordinator.drive_to(state);

    const auto effects = coordinator.say(messages::SaveFailed{1, {1}, kNoSpace});
    const auto again = coordinator.say(messages::SaveFailed{1, {0}, kNoSpace});

    const auto ends = sent<SaveOver>(effects);
    ASSERT_EQ(ends.size(), state == "gathering" ? 1u : 2u);
    for (const auto& end : ends) {
      EXPECT_EQ(end.failure.code, Errc::io);
      EXPECT_EQ(end.failure.message, "rank 1: no space left");
    }
    EXPECT_EQ(asked<DiscardSave>(effects).size(), state == "gathering" ? 0u : 1u);
    EXPECT_TRUE(again.empty());
    EXPECT_EQ(coordinator.machine.state(), "idle");
  }
}

TEST(CheckpointCoordinator, RankThatComesTooLateHearsTheSameEnd) {
  Coordinator coordinator;
  coordinator.drive_to("gathering");
  const auto ends = sent<SaveOver>(coordinator.timer());

  const auto late = sent<SaveOver>(coordinator.say(announced(1, 1, half(1))));
  const auto twice = coordinator.say(announced(1, 1, half(1)));

  EXPECT_EQ(ends.size(), 1u);
  EXPECT_EQ(late, ends);
  EXPECT_TRUE(twice.empty());
  EXPECT_EQ(coordinator.machine.state(), "idle");
}

TEST_P(CheckpointCoordinatorIn, AnotherSaveIsRefusedWhileOneIsUnderWay) {
  Coordinator refusing(config_of(2, core::WhenBusy::refuse));
  refusing.drive_to(GetParam());

  auto first = refusing.say(announced(1, 2, half(1)));
  const auto second = refusing.say(announced(0, 2, half(0)));

  EXPECT_EQ(refusing.machine.state(), is("idle") ? "gathering" : GetParam());
  if (is("idle")) return;
  first += second;
  const auto ends = sent<SaveOver>(first);
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_EQ(ends[0], ends[1]);
  EXPECT_EQ(ends[0].sequence, 2u);
  EXPECT_EQ(ends[0].failure.code, Errc::unavailable);
  EXPECT_THAT(ends[0].failure.message, HasSubstr("save 2 was refused: save 1 is not over"));
}

TEST_P(CheckpointCoordinatorIn, AnotherSaveWaitsForTheOneUnderWay) {
  auto waiting = coordinator.say(announced(0, 2, half(0)));
  if (!is("gathering")) waiting += coordinator.say(announced(1, 2, half(1)));
  EXPECT_TRUE(sent<SaveOver>(waiting).empty());
  if (is("idle")) return;

  const auto effects = coordinator.timer();

  EXPECT_EQ(sent<SaveOver>(effects).at(0).sequence, 1u);
  EXPECT_EQ(coordinator.machine.state(), is("gathering") ? "gathering" : "preparing");
}

TEST(CheckpointCoordinator, CommitsAfterTheLastRankAndTellsAllAlike) {
  Coordinator coordinator;

  const auto effects = coordinator.drive_to("committing");
  const auto done = coordinator.say(messages::SaveCommitDone{1, {}});

  const auto commits = asked<CommitSave>(effects);
  ASSERT_EQ(commits.size(), 1u);
  EXPECT_EQ(commits[0].step, core::StepCount{5});
  const auto manifest = core::parse_manifest(commits[0].manifest);
  ASSERT_TRUE(manifest) << manifest.error().message;
  EXPECT_EQ(manifest->step, core::StepCount{5});
  EXPECT_EQ(manifest->tensors.size(), 2u);
  EXPECT_EQ(commits[0].directory, "step_00000005.tmp-" + manifest->save);
  EXPECT_EQ(manifest->common, (core::Value{core::Value::Map{{"step", std::int64_t{5}}}}));
  const SaveOver expected{1, {4}, "step_00000005", 12 * 4, "", {}};
  EXPECT_EQ(sent<SaveOver>(done), (std::vector<SaveOver>{expected, expected}));
  EXPECT_EQ(coordinator.machine.state(), "idle");
  EXPECT_EQ(coordinator.machine.waiting_for(), "");
}

/// A part of "a" for each rank, and all of "b".
core::SaveStructure part_of(int rank, int ranks) {
  core::SaveStructure structure;
  structure.tensors = {{"a", core::DType::f32, {4 * ranks}}, {"b", core::DType::f32, {4}}};
  structure.pieces = {{0, {{4 * rank}, {4}}}, {1, core::Box::whole({4})}};
  return structure;
}

/// What each rank is to write, once all have announced a save and its directory is made.
std::vector<SavePlanned> drive_to_writing(Coordinator& coordinator, std::uint64_t sequence, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) coordinator.say(announced(rank, sequence, part_of(rank, ranks)));
  for (int rank = 0; rank < ranks; ++rank) coordinator.say(whole(part_of(rank, ranks)));
  return sent<SavePlanned>(coordinator.say(SaveDirectoryMade{sequence, {}}));
}

FilesDurable durable(std::uint64_t sequence, int rank, const std::vector<SavePlanned>& plans,
                     std::uint64_t hash = 5) {
  const auto shards = plans[static_cast<std::size_t>(rank)].pieces.size();
  return {sequence, {rank}, std::vector<std::uint64_t>(shards, hash), {}};
}

TEST(CheckpointCoordinator, CommitsOnlyAfterEveryRankInAnyOrder) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    std::vector<int> order(static_cast<std::size_t>(ranks));
    std::iota(order.begin(), order.end(), 0);
    do {
      Coordinator coordinator(config_of(ranks));
      const auto plans = drive_to_writing(coordinator, 1, ranks);
      ASSERT_EQ(plans.size(), order.size());
      for (std::size_t i = 0; i + 1 < order.size(); ++i) {
        // Said twice, it counts once.
        auto effects = coordinator.say(durable(1, order[i], plans));
        effects += coordinator.say(durable(1, order[i], plans));
        std::vector<int> rest(order.begin() + static_cast<std::ptrdiff_t>(i) + 1, order.end());
        std::sort(rest.begin(), rest.end());

        ASSERT_TRUE(effects.empty()) << i + 1 << " of " << ranks << " ranks";
        ASSERT_EQ(coordinator.machine.state(), "writing");
        ASSERT_EQ(coordinator.machine.waiting_for(), fmt::format("rank {} to write", fmt::join(rest, ", ")));
      }

      const auto effects = coordinator.say(durable(1, order.back(), plans));

      ASSERT_EQ(asked<CommitSave>(effects).size(), 1u);
      ASSERT_EQ(coordinator.machine.state(), "committing");
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST(CheckpointCoordinator, OmitsRanksDurableInOneSaveFromTheNext) {
  const std::vector<std::pair<std::string, std::vector<messages::Message>>> ends{
      {"a failure", {messages::SaveFailed{1, {1}, kNoSpace}}},
      {"a rank that is not durable", {FilesDurable{1, {1}, {}, kNoSpace}}},
      {"a wrong number of shards", {FilesDurable{1, {1}, {1, 2, 3, 4, 5}, {}}}},
      {"its deadline", {}},
      {"its commit", {FilesDurable{1, {1}, {5}, {}}, messages::SaveCommitDone{1, {}}}},
      {"a commit that fails", {FilesDurable{1, {1}, {5}, {}}, messages::SaveCommitDone{1, kNoSpace}}},
  };
  for (const auto& [what, messages] : ends) {
    Coordinator coordinator;
    const auto before = drive_to_writing(coordinator, 1, 2);
    ASSERT_EQ(before.size(), 2u);
    ASSERT_EQ(before[1].pieces.size(), 1u);
    coordinator.say(durable(1, 0, before, 111));
    for (const auto& message : messages) coordinator.say(message);
    if (messages.empty()) coordinator.timer();
    ASSERT_EQ(coordinator.machine.state(), "idle") << what;
    const auto plans = drive_to_writing(coordinator, 2, 2);
    ASSERT_EQ(plans.size(), 2u) << what;

    EXPECT_EQ(coordinator.machine.waiting_for(), "rank 0, 1 to write") << what;
    EXPECT_TRUE(coordinator.say(durable(1, 0, before, 111)).empty()) << "late, of the save before";
    EXPECT_TRUE(coordinator.say(durable(2, 1, plans, 222)).empty()) << what;
    EXPECT_EQ(coordinator.machine.waiting_for(), "rank 0 to write") << what;
    const auto commits = asked<CommitSave>(coordinator.say(durable(2, 0, plans, 222)));

    ASSERT_EQ(commits.size(), 1u) << what;
    const auto manifest = core::parse_manifest(commits[0].manifest);
    ASSERT_TRUE(manifest) << manifest.error().message;
    for (const auto& tensor : manifest->tensors) {
      for (const auto& shard : tensor.shards) EXPECT_EQ(shard.hash, 222u) << what;
    }
  }
}

TEST(CheckpointCoordinator, AFailedCommitIsAFailedSave) {
  Coordinator coordinator;
  coordinator.drive_to("committing");

  const auto ends = sent<SaveOver>(coordinator.say(messages::SaveCommitDone{1, kNoSpace}));

  ASSERT_EQ(ends.size(), 2u);
  EXPECT_EQ(ends[0].failure, kNoSpace);
  EXPECT_EQ(ends[0].directory, "");
}

TEST(CheckpointCoordinator, ADirectoryThatCannotBeMadeFailsTheSave) {
  Coordinator coordinator;
  coordinator.drive_to("preparing");

  const auto effects = coordinator.say(SaveDirectoryMade{1, kNoSpace});

  EXPECT_EQ(sent<SaveOver>(effects).size(), 2u);
  EXPECT_TRUE(sent<SavePlanned>(effects).empty());
  EXPECT_EQ(coordinator.machine.state(), "idle");
}

TEST(CheckpointCoordinator, RanksThatSaveAfterDifferentStepsAreNamed) {
  Coordinator coordinator;
  coordinator.say(announced(0, 1, half(0), 4));

  const auto ends = sent<SaveOver>(coordinator.say(announced(1, 1, half(1), 5)));

  ASSERT_EQ(ends.size(), 2u);
  EXPECT_EQ(ends[0].failure.code, Errc::mismatch);
  EXPECT_EQ(ends[0].failure.message, "rank 1 saves after step 5, rank 0 after step 4");
}

TEST(CheckpointCoordinator, AWrongNumberOfHashesFailsTheSave) {
  for (std::size_t count : {0, 1, 3, 100}) {
    Coordinator coordinator;
    const auto plans = sent<SavePlanned>(coordinator.drive_to("writing"));
    if (plans[0].pieces.size() == count) continue;

    const auto ends =
        sent<SaveOver>(coordinator.say(FilesDurable{1, {0}, std::vector<std::uint64_t>(count), {}}));

    ASSERT_EQ(ends.size(), 2u) << count;
    EXPECT_THAT(ends[0].failure.message, HasSubstr("rank 0 wrote " + std::to_string(count) + " shards"));
  }
}

TEST(CheckpointCoordinator, NonDurableFilesFailTheSaveDespiteMatchingNumbers) {
  Coordinator coordinator;
  const auto plans = sent<SavePlanned>(coordinator.drive_to("writing"));

  const auto ends = sent<SaveOver>(
      coordinator.say(FilesDurable{1, {0}, std::vector<std::uint64_t>(plans[0].pieces.size()), kNoSpace}));

  ASSERT_EQ(ends.size(), 2u);
  EXPECT_EQ(ends[0].failure.message, "rank 0: no space left");
}

// Covers stored-4.
TEST(CheckpointCoordinator, DifferingCommonValuesGiveAWarningThatNamesRanks) {
  Coordinator coordinator;
  auto other = announced(1, 1, half(1));
  other.common_hash ^= 1;
  coordinator.say(announced(0, 1, half(0)));
  auto effects = coordinator.say(other);
  effects += coordinator.say(whole(half(0)));
  effects += coordinator.say(whole(half(1)));
  effects += coordinator.say(SaveDirectoryMade{1, {}});
  const auto plans = sent<SavePlanned>(effects);
  for (int rank = 0; rank < 2; ++rank) {
    const auto count = plans[static_cast<std::size_t>(rank)].pieces.size();
    coordinator.say(FilesDurable{1, {rank}, std::vector<std::uint64_t>(count), {}});
  }

  const auto ends = sent<SaveOver>(coordinator.say(messages::SaveCommitDone{1, {}}));

  ASSERT_EQ(ends.size(), 2u);
  EXPECT_FALSE(ends[0].failure.failed);
  EXPECT_THAT(ends[0].warning, HasSubstr("the common state of rank 1 differs"));
}

TEST(CheckpointCoordinator, UnparsableValuesFailTheSaveInsteadOfTheJob) {
  for (const bool objects : {false, true}) {
    Coordinator coordinator;
    auto bad = announced(0, 1, half(0));
    (objects ? bad.objects : bad.common) = "{no json";
    coordinator.say(bad);
    auto effects = coordinator.say(announced(1, 1, half(1)));
    effects += coordinator.say(whole(half(0)));
    effects += coordinator.say(whole(half(1)));
    effects += coordinator.say(SaveDirectoryMade{1, {}});
    for (int rank = 0; rank < 2; ++rank) {
      const auto count = sent<SavePlanned>(effects).at(static_cast<std::size_t>(rank)).pieces.size();
      effects += coordinator.say(FilesDurable{1, {rank}, std::vector<std::uint64_t>(count), {}});
    }

    ASSERT_EQ(sent<SaveOver>(effects).size(), 2u);
    EXPECT_EQ(sent<SaveOver>(effects).at(0).failure.code, Errc::corrupt);
    EXPECT_EQ(asked<DiscardSave>(effects).size(), 1u);
  }
}

TEST(CheckpointCoordinator, ObjectsThatComeTwiceFailTheSave) {
  const std::string first = R"(["rng",[2],[0],1])";
  const std::string second = R"(["rng",[2],[1],1])";
  const std::string other_grid = R"(["rng",[3],[2],1])";
  struct Case {
    std::string of_rank_0;
    std::string of_rank_1;
    std::string complaint;  ///< empty: the save goes on
  };
  const std::vector<Case> cases{{first, second, ""},
                                {first, first, "object 'rng' comes twice at (0)"},
                                {first + "," + first, second, "object 'rng' comes twice at (0)"},
                                {first, other_grid, "object 'rng' has the grids (2) and (3)"}};
  for (const auto& [of_rank_0, of_rank_1, complaint] : cases) {
    Coordinator coordinator;
    auto zero = announced(0, 1, half(0));
    auto one = announced(1, 1, half(1));
    zero.objects = "[" + of_rank_0 + "]";
    one.objects = "[" + of_rank_1 + "]";
    coordinator.say(zero);
    coordinator.say(one);
    coordinator.say(whole(half(0)));
    coordinator.say(whole(half(1)));
    const auto plans = sent<SavePlanned>(coordinator.say(SaveDirectoryMade{1, {}}));
    ASSERT_EQ(plans.size(), 2u);
    coordinator.say(durable(1, 0, plans));
    const auto effects = coordinator.say(durable(1, 1, plans));

    const auto commits = asked<CommitSave>(effects);
    if (complaint.empty()) {
      ASSERT_EQ(commits.size(), 1u);
      EXPECT_TRUE(core::parse_manifest(commits[0].manifest));
      continue;
    }
    EXPECT_TRUE(commits.empty()) << complaint;
    const auto ends = sent<SaveOver>(effects);
    ASSERT_EQ(ends.size(), 2u) << complaint;
    EXPECT_TRUE(ends[0].failure.failed);
    EXPECT_THAT(ends[0].failure.message, HasSubstr(complaint));
    EXPECT_EQ(asked<DiscardSave>(effects).size(), 1u) << complaint;
  }
}

TEST(CheckpointCoordinator, DirectoriesOfDifferentSavesAndJobsDiffer) {
  std::set<std::string> names;
  for (std::uint64_t seed : {1, 2}) {
    auto config = config_of(2);
    config.save_seed = seed;
    Coordinator coordinator(config);
    for (std::uint64_t sequence : {1, 2}) {
      const auto effects = coordinator.drive_to("preparing", sequence);
      names.insert(asked<MakeSaveDirectory>(effects).at(0).directory);
      coordinator.timer();
    }
  }

  EXPECT_EQ(names.size(), 4u);
}

}  // namespace
}  // namespace troupe::actors
