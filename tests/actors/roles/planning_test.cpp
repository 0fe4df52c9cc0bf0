#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/checkpoint/manifest.hpp"
#include "tests/actors/roles/coordinator_probe.hpp"

namespace troupe::actors {
namespace {

using core::Box;
using core::DType;
using core::Errc;
using core::SaveStructure;
using messages::FilesDurable;
using messages::SaveDirectoryMade;
using messages::SaveOver;
using messages::SavePlanned;
using messages::StructurePart;
using messages::StructureWanted;
using testing::ElementsAre;
using testing::HasSubstr;

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

TEST(CheckpointCoordinator, MismatchedStructuresFailTheSaveBeforeAnyWrite) {
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

TEST(CheckpointCoordinator, AsksForStructuresByPartsAndTakesNoneTwice) {
  Coordinator coordinator(config_of(1));
  SaveStructure all;
  all.tensors = {{"a", DType::f32, {8}}};
  all.pieces = {{0, Box::whole({8})}};
  const auto text = core::to_text(all);
  const auto hash = core::hash64(text);
  const auto cut = text.size() / 2;
  coordinator.say(announced(0, 1, all));

  const StructurePart first{hash, 0, 2, text.substr(0, cut)};
  const StructurePart second{hash, 1, 2, text.substr(cut)};
  EXPECT_TRUE(coordinator.say(second).empty()) << "nobody asked for it yet";
  EXPECT_THAT(sent<StructureWanted>(coordinator.say(first)), ElementsAre(StructureWanted{hash, 1}));
  EXPECT_TRUE(coordinator.say(first).empty());
  EXPECT_TRUE(coordinator.say(StructurePart{hash, 1, 3, text.substr(cut)}).empty());
  EXPECT_EQ(coordinator.machine.state(), "gathering");
  coordinator.say(second);

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
      EXPECT_TRUE(sent<SaveOver>(effects).empty()) << "an empty part alters nothing";
      continue;
    }
    const auto ends = sent<SaveOver>(effects);
    ASSERT_EQ(ends.size(), 2u);
    EXPECT_EQ(ends[0].failure.code, Errc::corrupt);
    EXPECT_THAT(ends[0].failure.message, HasSubstr("arrived altered"));
  }
}

// Covers save-16, save-17.
TEST(CheckpointCoordinator, AsksOnceForConstantStructuresAndReplansChangedOnes) {
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
    const int rank = plan == sent<SavePlanned>(third).at(0) ? 0 : 1;
    third += coordinator.say(FilesDurable{3, {rank}, std::vector<std::uint64_t>(plan.pieces.size()), {}});
  }

  EXPECT_EQ(sent<StructureWanted>(first).size(), 2u);
  EXPECT_EQ(sent<StructureWanted>(second).size(), 0u);
  EXPECT_EQ(sent<SavePlanned>(second).size(), 2u);
  EXPECT_EQ(sent<StructureWanted>(third).size(), 2u);
  ASSERT_EQ(asked<CommitSave>(third).size(), 1u);
  const auto manifest = core::parse_manifest(asked<CommitSave>(third).at(0).manifest);
  ASSERT_TRUE(manifest) << manifest.error().message;
  ASSERT_NE(manifest->find("a"), nullptr);
  EXPECT_EQ(manifest->find("a")->shards[0].box, (Box{{0}, {3}}));
}

// Covers save-17.
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
  const auto manifest = core::parse_manifest(asked<CommitSave>(committing).at(0).manifest);
  ASSERT_TRUE(manifest);
  ASSERT_NE(manifest->find("a"), nullptr);
  for (const auto& shard : manifest->find("a")->shards) {
    const auto& file = manifest->files[shard.file].name;
    EXPECT_EQ(file, shard.box.offset[0] == 4 ? "shard_00000_0.safetensors" : "shard_00001_0.safetensors");
  }
}

// Covers save-16.
TEST(CheckpointCoordinator, RanksOfOneStructureAreAskedOnce) {
  Coordinator coordinator;
  SaveStructure all;
  all.tensors = {{"a", DType::f32, {8}}};
  all.pieces = {{0, Box::whole({8})}};

  auto effects = coordinator.say(announced(0, 1, all));
  effects += coordinator.say(announced(1, 1, all));

  EXPECT_EQ(sent<StructureWanted>(effects).size(), 1u);
}

}  // namespace
}  // namespace troupe::actors
