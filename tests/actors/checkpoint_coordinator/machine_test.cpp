#include "actors/checkpoint_coordinator/machine.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/values_text.hpp"
#include "core/hash.hpp"
#include "tests/actors/checkpoint/checkpoint_work.hpp"
#include "tests/actors/support/machine_probe.hpp"

namespace troupe::actors {
namespace {

using core::Box;
using core::DType;
using core::Errc;
using core::Rank;
using core::SaveStructure;
using messages::FilesDurable;
using messages::SaveAnnounced;
using messages::SaveDirectoryMade;
using messages::SaveOver;
using messages::SavePlanned;
using messages::StructurePart;
using messages::StructureWanted;
using testing::HasSubstr;

constexpr auto kDeadline = std::chrono::seconds(90);
const messages::Failure kNoSpace{true, Errc::io, "no space left"};

/// Half of "a", by rows, and all of "b".
SaveStructure half(int rank) {
  SaveStructure structure;
  structure.tensors = {{"a", DType::f32, {8}}, {"b", DType::f32, {4}}};
  structure.pieces = {{0, {{4 * rank}, {4}}}, {1, Box::whole({4})}};
  return structure;
}

std::uint64_t hash_of(const SaveStructure& structure) {
  return core::hash64(core::to_text(structure));
}

SaveAnnounced announced(int rank, std::uint64_t sequence, const SaveStructure& structure,
                        std::int64_t step = 4) {
  const std::string common = *core::value_text(core::Value::Map{{"step", step + 1}});
  SaveAnnounced message{sequence, Rank{rank}, {step}, hash_of(structure), core::hash64(common), "", "", "[]"};
  if (rank != 0) return message;
  message.common = common;
  message.topology = *core::value_text(core::Value::Map{{"world", std::int64_t{2}}});
  return message;
}

StructurePart whole(const SaveStructure& structure) {
  return {hash_of(structure), 0, 1, core::to_text(structure)};
}

CheckpointCoordinatorConfig config_of(int ranks, WhenBusy when_busy = WhenBusy::queue) {
  return {{ranks}, kDeadline, when_busy, 17};
}

/// A coordinator of two ranks.
struct Coordinator {
  explicit Coordinator(CheckpointCoordinatorConfig config = config_of(2)) : machine(config) {}
  CheckpointCoordinatorMachine machine;
  MachineProbe probe{machine};

  std::vector<Effect> say(const messages::Message& message) { return probe.say(message); }
  std::vector<Effect> timer() { return probe.timer(0); }

  /// Both announce, and are known.
  std::vector<Effect> gather(std::uint64_t sequence) {
    std::vector<Effect> effects;
    for (int rank = 0; rank < 2; ++rank) effects += say(announced(rank, sequence, half(rank)));
    for (const auto& wanted : sent<StructureWanted>(effects)) {
      for (int rank = 0; rank < 2; ++rank) {
        if (wanted.structure_hash == hash_of(half(rank))) effects += say(whole(half(rank)));
      }
    }
    return effects;
  }
  std::vector<Effect> drive_to(std::string_view state, std::uint64_t sequence = 1) {
    if (state == "idle") return {};
    if (state == "gathering") return say(announced(0, sequence, half(0)));
    auto effects = gather(sequence);
    if (state == "preparing") return effects;
    effects += say(SaveDirectoryMade{sequence, {}});
    if (state == "writing") return effects;
    // Two shards for the one who has the smaller load, one for the other.
    const auto plans = sent<SavePlanned>(effects);
    for (int rank = 0; rank < 2; ++rank) {
      const auto shards = plans[static_cast<std::size_t>(rank)].pieces.size();
      effects += say(FilesDurable{sequence, {rank}, std::vector<std::uint64_t>(shards, 5), {}});
    }
    return effects;
  }
};

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

TEST_P(CheckpointCoordinatorIn, TheDeadlineEndsTheSaveAndNamesWhoIsMissing) {
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

TEST(CheckpointCoordinator, TheFirstFailureEndsTheSaveForAllAndClearsItsDirectory) {
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

TEST(CheckpointCoordinator, ARankThatComesTooLateHearsTheSameEnd) {
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
  Coordinator refusing(config_of(2, WhenBusy::refuse));
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

  EXPECT_EQ(sent<SaveOver>(effects)[0].sequence, 1u);
  EXPECT_EQ(coordinator.machine.state(), is("gathering") ? "gathering" : "preparing");
}

TEST(CheckpointCoordinator, CommitsAfterTheLastRankAndTellsAllTheSame) {
  Coordinator coordinator;

  const auto effects = coordinator.drive_to("committing");
  const auto done = coordinator.say(messages::SaveCommitDone{1, {}});

  const auto commits = asked<CommitSave>(effects);
  ASSERT_EQ(commits.size(), 1u);
  EXPECT_EQ(commits[0].step, core::Step{5});
  const auto manifest = core::parse_manifest(commits[0].manifest);
  ASSERT_TRUE(manifest) << manifest.error().message;
  EXPECT_EQ(manifest->step, core::Step{5});
  EXPECT_EQ(manifest->tensors.size(), 2u);
  EXPECT_EQ(commits[0].directory, "step_00000005.tmp-" + manifest->save);
  EXPECT_EQ(manifest->common, (core::Value{core::Value::Map{{"step", std::int64_t{5}}}}));
  const SaveOver expected{1, {4}, "step_00000005", 12 * 4, "", {}};
  EXPECT_EQ(sent<SaveOver>(done), (std::vector<SaveOver>{expected, expected}));
  EXPECT_EQ(coordinator.machine.state(), "idle");
  EXPECT_EQ(coordinator.machine.waiting_for(), "");
}

TEST(CheckpointCoordinator, AFailedCommitIsAFailedSave) {
  Coordinator coordinator;
  coordinator.drive_to("committing");

  const auto ends = sent<SaveOver>(coordinator.say(messages::SaveCommitDone{1, kNoSpace}));

  ASSERT_EQ(ends.size(), 2u);
  EXPECT_EQ(ends[0].failure, kNoSpace);
  EXPECT_EQ(ends[0].directory, "");
}

TEST(CheckpointCoordinator, ADirectoryThatCanNotBeMadeFailsTheSave) {
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

struct Structures {
  const char* what;
  SaveStructure first;
  SaveStructure second;
  const char* words;
};

std::vector<Structures> bad_structures() {
  auto dtype = half(1);
  dtype.tensors[0].dtype = DType::f64;
  auto shape = half(1);
  shape.tensors[1].shape = {2, 2};
  shape.pieces[1].box = Box::whole({2, 2});
  auto hole = half(1);
  hole.pieces[0].box = {{5}, {3}};
  auto overlap = half(1);
  overlap.pieces[0].box = {{3}, {5}};
  auto keys = half(1);
  keys.tensors[0].key = "c";
  return {{"dtype", half(0), dtype, "'a'"},
          {"shape", half(0), shape, "'b'"},
          {"hole", half(0), hole, "'a'"},
          {"overlap", half(0), overlap, "'a'"},
          {"keys", half(0), keys, "tensor '"}};
}

TEST(CheckpointCoordinator, StructuresThatDoNotFitTogetherFailTheSaveBeforeAnythingIsWritten) {
  for (const auto& [what, first, second, words] : bad_structures()) {
    Coordinator coordinator;
    coordinator.say(announced(0, 1, first));
    coordinator.say(announced(1, 1, second));
    coordinator.say(whole(first));

    const auto effects = coordinator.say(whole(second));

    const auto ends = sent<SaveOver>(effects);
    ASSERT_EQ(ends.size(), 2u) << what;
    EXPECT_TRUE(ends[0].failure.failed);
    EXPECT_THAT(ends[0].failure.message, HasSubstr(words)) << what;
    EXPECT_TRUE(asked<MakeSaveDirectory>(effects).empty()) << what;
    EXPECT_EQ(coordinator.machine.state(), "idle") << what;
    EXPECT_EQ(sent<SavePlanned>(coordinator.drive_to("writing", 2)).size(), 2u) << "the next save is planned";
  }
}

TEST(CheckpointCoordinator, TakesAStructureInPartsThatComeInAnyOrderAndTwice) {
  Coordinator coordinator(config_of(1));
  SaveStructure all;
  all.tensors = {{"a", DType::f32, {8}}};
  all.pieces = {{0, Box::whole({8})}};
  const auto text = core::to_text(all);
  const auto hash = core::hash64(text);
  const auto cut = text.size() / 2;
  coordinator.say(announced(0, 1, all));

  coordinator.say(StructurePart{hash, 1, 2, text.substr(cut)});
  coordinator.say(StructurePart{hash, 1, 2, text.substr(cut)});
  coordinator.say(StructurePart{hash, 1, 3, text.substr(cut)});
  EXPECT_EQ(coordinator.machine.state(), "gathering");
  coordinator.say(StructurePart{hash, 0, 2, text.substr(0, cut)});

  EXPECT_EQ(coordinator.machine.state(), "preparing");
}

TEST(CheckpointCoordinator, AStructureThatArrivesAlteredFailsTheSave) {
  const auto text = core::to_text(half(0));
  const std::vector<std::vector<std::string>> altered{
      {"no structure"}, {core::to_text(half(1))}, {text, ""}, {"", ""}};
  for (const auto& texts : altered) {
    Coordinator coordinator;
    coordinator.say(announced(0, 1, half(0)));
    coordinator.say(announced(1, 1, half(1)));
    std::vector<Effect> effects;

    for (std::uint32_t part = 0; part < texts.size(); ++part) {
      effects += coordinator.say(
          StructurePart{hash_of(half(0)), part, static_cast<std::uint32_t>(texts.size()), texts[part]});
    }

    if (texts.front() == text) {
      EXPECT_TRUE(effects.empty()) << "an empty part alters nothing";
      continue;
    }
    const auto ends = sent<SaveOver>(effects);
    ASSERT_EQ(ends.size(), 2u);
    EXPECT_EQ(ends[0].failure.code, Errc::corrupt);
    EXPECT_THAT(ends[0].failure.message, HasSubstr("arrived altered"));
  }
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

TEST(CheckpointCoordinator, FilesThatAreNotDurableFailTheSaveThoughTheirNumberIsRight) {
  Coordinator coordinator;
  const auto plans = sent<SavePlanned>(coordinator.drive_to("writing"));

  const auto ends = sent<SaveOver>(
      coordinator.say(FilesDurable{1, {0}, std::vector<std::uint64_t>(plans[0].pieces.size()), kNoSpace}));

  ASSERT_EQ(ends.size(), 2u);
  EXPECT_EQ(ends[0].failure.message, "rank 0: no space left");
}

TEST(CheckpointCoordinator, AConstantStructureIsAskedForOnceAndAChangedOneIsPlannedAnew) {
  Coordinator coordinator;
  auto save = [&](std::uint64_t sequence) {
    auto effects = coordinator.drive_to("committing", sequence);
    effects += coordinator.say(messages::SaveCommitDone{sequence, {}});
    return effects;
  };
  const auto first = save(1);
  const auto second = save(2);
  auto moved = half(0);
  moved.pieces[0].box = {{0}, {3}};
  auto rest = half(1);
  rest.pieces[0].box = {{3}, {5}};

  auto third = coordinator.say(announced(0, 3, moved));
  third += coordinator.say(announced(1, 3, rest));
  third += coordinator.say(whole(moved));
  third += coordinator.say(whole(rest));
  third += coordinator.say(SaveDirectoryMade{3, {}});
  for (const auto& plan : sent<SavePlanned>(third)) {
    const int rank = plan == sent<SavePlanned>(third)[0] ? 0 : 1;
    third += coordinator.say(FilesDurable{3, {rank}, std::vector<std::uint64_t>(plan.pieces.size()), {}});
  }

  EXPECT_EQ(sent<StructureWanted>(first).size(), 2u);
  EXPECT_EQ(sent<StructureWanted>(second).size(), 0u);
  EXPECT_EQ(sent<SavePlanned>(second).size(), 2u);
  EXPECT_EQ(sent<StructureWanted>(third).size(), 2u);
  ASSERT_EQ(asked<CommitSave>(third).size(), 1u);
  const auto manifest = core::parse_manifest(asked<CommitSave>(third)[0].manifest);
  ASSERT_TRUE(manifest) << manifest.error().message;
  EXPECT_EQ(manifest->find("a")->shards[0].box, (Box{{0}, {3}}));
}

TEST(CheckpointCoordinator, RanksThatChangePlacesArePlannedAnew) {
  Coordinator coordinator;
  coordinator.drive_to("committing", 1);
  coordinator.say(messages::SaveCommitDone{1, {}});
  coordinator.say(announced(0, 2, half(1)));

  const auto effects = coordinator.say(announced(1, 2, half(0)));

  EXPECT_TRUE(sent<StructureWanted>(effects).empty()) << "both are known";
  coordinator.say(SaveDirectoryMade{2, {}});
  auto committing = coordinator.say(FilesDurable{2, {0}, {1, 2}, {}});
  committing += coordinator.say(FilesDurable{2, {1}, {3}, {}});
  ASSERT_EQ(asked<CommitSave>(committing).size(), 1u) << coordinator.machine.waiting_for();
  const auto manifest = core::parse_manifest(asked<CommitSave>(committing)[0].manifest);
  ASSERT_TRUE(manifest);
  for (const auto& shard : manifest->find("a")->shards) {
    const auto& file = manifest->files[shard.file].name;
    EXPECT_EQ(file, shard.box.offset[0] == 4 ? "shard_00000_0.safetensors" : "shard_00001_0.safetensors");
  }
}

TEST(CheckpointCoordinator, RanksOfOneStructureAreAskedOnce) {
  Coordinator coordinator;
  SaveStructure all;
  all.tensors = {{"a", DType::f32, {8}}};
  all.pieces = {{0, Box::whole({8})}};

  auto effects = coordinator.say(announced(0, 1, all));
  effects += coordinator.say(announced(1, 1, all));

  EXPECT_EQ(sent<StructureWanted>(effects).size(), 1u);
}

TEST(CheckpointCoordinator, CommonValuesThatDifferGiveAWarningThatNamesTheRanks) {
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

TEST(CheckpointCoordinator, ValuesThatDoNotParseFailTheSaveInsteadOfTheJob) {
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
      const auto count = sent<SavePlanned>(effects)[static_cast<std::size_t>(rank)].pieces.size();
      effects += coordinator.say(FilesDurable{1, {rank}, std::vector<std::uint64_t>(count), {}});
    }

    ASSERT_EQ(sent<SaveOver>(effects).size(), 2u);
    EXPECT_EQ(sent<SaveOver>(effects)[0].failure.code, Errc::corrupt);
    EXPECT_EQ(asked<DiscardSave>(effects).size(), 1u);
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
      names.insert(asked<MakeSaveDirectory>(effects)[0].directory);
      coordinator.timer();
    }
  }

  EXPECT_EQ(names.size(), 4u);
}

}  // namespace
}  // namespace troupe::actors
