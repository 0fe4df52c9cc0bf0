#include "actors/roles/checkpoint_writer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/hash.hpp"
#include "core/indices.hpp"
#include "tests/actors/planes/checkpoint/checkpoint_work.hpp"
#include "tests/actors/support/machine_probe.hpp"

namespace troupe::actors {
namespace {

using core::Errc;
using messages::BucketHeld;
using messages::BucketStaged;
using messages::ChunkStaged;
using messages::ChunkWritten;
using messages::FilesDurable;
using messages::SaveBegan;
using messages::SaveOver;
using messages::SavePlanned;

constexpr std::uint32_t kBuckets = 2;
const messages::Failure kNoSpace{true, Errc::io, "no space left"};

/// Bucket 0 makes two chunks, bucket 1 one; there are two credits.
CheckpointWriterConfig small_writer() {
  CheckpointWriterConfig config;
  config.rank = core::Rank{2};
  config.buckets = kBuckets;
  config.structure.tensors = {{"a", core::DType::f32, {8}}, {"b", core::DType::f32, {4}}};
  config.structure.pieces = {{0, core::Box::whole({8})}, {1, core::Box::whole({4})}};
  config.bucket_of = {{0}, {1}};
  config.chunk_bytes = 16;
  config.staging = {16, 16};
  return config;
}

SaveBegan began(std::uint64_t sequence, core::Step step = {4}) {
  return {sequence, step, "{}", "null", "[]"};
}

SaveOver over(std::uint64_t sequence, messages::Failure failure = {}) {
  return {sequence, {4}, "step_00000005", 48, {}, std::move(failure)};
}

/// A writer, and all it has wanted so far.
struct Writer {
  CheckpointWriterMachine machine{small_writer()};
  MachineProbe probe{machine};
  std::vector<Effect> effects;

  std::vector<Effect> say(const messages::Message& message) {
    auto more = probe.say(message);
    effects += more;
    return more;
  }
  std::vector<Effect> timer() { return probe.timer(0); }
  void begin(std::uint64_t sequence) {
    say(began(sequence));
    say(SavePlanned{sequence, "d", {0, 1}});
    for (const auto bucket : core::indices<core::BucketIndex>(kBuckets)) say(BucketHeld{sequence, bucket});
  }
  /// Brings save 1 into a state by the shortest way.
  void drive_to(std::string_view state) {
    say(began(1));
    if (state == "accepted") return;
    say(SavePlanned{1, "d", {0, 1}});
    for (const auto bucket : core::indices<core::BucketIndex>(kBuckets)) say(BucketHeld{1, bucket});
    if (state == "staging") return;
    say(ChunkStaged{1, 0, 0});
    if (state == "failed") say(ChunkWritten{1, 0, 0, kNoSpace});
    if (state == "failed") return;
    say(ChunkStaged{1, 1, 1});
    say(ChunkWritten{1, 0, 0, {}});
    say(ChunkStaged{1, 2, 0});
    if (state == "staged") return;
    say(ChunkWritten{1, 1, 1, {}});
    say(ChunkWritten{1, 2, 0, {}});
    if (state == "written") return;
    say(FilesDurable{1, {}, {7, 8}, {}});
  }
  /// The chunks that are being copied then.
  std::vector<Effect> end_copies(std::string_view state) {
    std::vector<Effect> more;
    if (state == "staging") more += say(ChunkStaged{1, 0, 0});
    if (state == "staging" || state == "failed") more += say(ChunkStaged{1, 1, 1});
    return more;
  }
};

/// The buckets that were released for a save, sorted.
std::vector<std::uint32_t> released(const std::vector<Effect>& effects, std::uint64_t sequence) {
  std::vector<std::uint32_t> buckets;
  for (const auto& effect : effects) {
    const auto* send = std::get_if<Send>(&effect);
    const auto* staged = send != nullptr ? std::get_if<BucketStaged>(&send->body) : nullptr;
    if (staged == nullptr || staged->sequence != sequence) continue;
    EXPECT_EQ(send->to.role, messages::Role::parameter_shard);
    buckets.push_back(send->to.index);
  }
  std::sort(buckets.begin(), buckets.end());
  return buckets;
}

const std::vector<std::uint32_t> kAllBuckets{0, 1};
const std::vector<std::string> kStates{"accepted", "staging", "staged", "written", "durable", "failed"};

class CheckpointWriterIn : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    writer.drive_to(GetParam());
    ASSERT_EQ(writer.machine.state(), GetParam());
  }
  bool is(std::string_view state) const { return GetParam() == state; }
  Writer writer;
};

INSTANTIATE_TEST_SUITE_P(EveryState, CheckpointWriterIn, testing::ValuesIn(kStates),
                         [](const auto& state) { return state.param; });

TEST_P(CheckpointWriterIn, WhatDoesNotBelongThereChangesNothing) {
  std::vector<messages::Message> strangers{
      began(1),
      began(0),
      SavePlanned{1, "other", {0}},
      SavePlanned{7, "other", {0}},
      BucketHeld{1, kBuckets},
      BucketHeld{0, 0},
      messages::StructureWanted{1},
      FilesDurable{7, {}, {1}, {}},
      over(7),
      over(0, kNoSpace),
      messages::Published{core::Step{4}, 0},
  };
  if (is("accepted")) strangers.erase(strangers.begin() + 2);
  if (!is("written")) strangers.push_back(FilesDurable{1, {}, {1, 2}, {}});
  if (!is("written")) strangers.push_back(FilesDurable{1, {}, {}, kNoSpace});

  for (const auto& stranger : strangers) {
    EXPECT_TRUE(writer.say(stranger).empty()) << messages::name_of(stranger);
    EXPECT_EQ(writer.machine.state(), GetParam()) << messages::name_of(stranger);
  }
}

// Covers local-12.
TEST_P(CheckpointWriterIn, SavesEndReleasesBucketsAndTellsTheTrainerOnce) {
  auto effects = writer.say(over(1, kNoSpace));
  effects += writer.end_copies(GetParam());
  const auto again = writer.say(over(1, kNoSpace));

  EXPECT_EQ(released(writer.effects, 1), kAllBuckets);
  EXPECT_EQ(sent<SaveOver>(effects), std::vector<SaveOver>{over(1, kNoSpace)});
  EXPECT_TRUE(again.empty());
  EXPECT_EQ(writer.machine.state(), is("failed") ? "failed" : "aborted");
  EXPECT_EQ(asked<CloseSave>(writer.effects).size(), is("accepted") ? 0u : 1u);
  EXPECT_EQ(writer.machine.waiting_for(), "");
}

TEST_P(CheckpointWriterIn, ACommitLeavesNothingHeld) {
  writer.say(over(1));
  writer.end_copies(GetParam());

  EXPECT_EQ(released(writer.effects, 1), kAllBuckets);
  EXPECT_EQ(writer.machine.state(), "committed");
}

// Covers local-17.
TEST_P(CheckpointWriterIn, NextSaveHasAllCreditsOnceTheyAreBack) {
  writer.say(over(1, kNoSpace));
  writer.begin(2);
  // What the first save still had under way comes back now.
  writer.end_copies(GetParam());
  if (is("staged")) {
    writer.say(ChunkWritten{1, 1, 1, {}});
    writer.say(ChunkWritten{1, 2, 0, kNoSpace});
  }

  std::vector<std::uint32_t> credits;
  for (const auto& chunk : asked<StageChunk>(writer.effects)) {
    if (chunk.sequence == 2) credits.push_back(chunk.credit);
  }
  std::sort(credits.begin(), credits.end());
  EXPECT_EQ(credits, (std::vector<std::uint32_t>{0, 1}));
}

TEST_P(CheckpointWriterIn, SecondSaveWaitsAndIsRefusedWithoutHarm) {
  writer.say(began(2));
  const auto refused = writer.say(over(2, {true, Errc::unavailable, "busy"}));

  EXPECT_EQ(released(refused, 2), kAllBuckets);
  EXPECT_TRUE(asked<CloseSave>(refused).empty());
  EXPECT_EQ(writer.machine.state(), GetParam());
  writer.say(over(1, kNoSpace));
  writer.end_copies(GetParam());
  EXPECT_EQ(released(writer.effects, 1), kAllBuckets);
}

TEST(CheckpointWriter, KeepsAFailedSavesBucketUntilNoCopyRuns) {
  Writer writer;
  writer.begin(1);
  writer.say(ChunkStaged{1, 0, 0});

  writer.say(ChunkWritten{1, 0, 0, kNoSpace});
  EXPECT_EQ(released(writer.effects, 1), (std::vector<std::uint32_t>{1})) << "a chunk of bucket 0 is copied";
  writer.say(over(1, kNoSpace));
  EXPECT_TRUE(sent<SaveOver>(writer.effects).empty());
  writer.say(ChunkStaged{1, 1, 1});

  EXPECT_EQ(released(writer.effects, 1), kAllBuckets);
  EXPECT_EQ(sent<SaveOver>(writer.effects), std::vector<SaveOver>{over(1, kNoSpace)});
}

TEST(CheckpointWriter, GoesThroughItsStatesAndSaysDurableLast) {
  Writer writer;

  writer.drive_to("durable");
  const auto durable = sent<FilesDurable>(writer.effects);
  writer.say(over(1));

  EXPECT_EQ(durable, (std::vector<FilesDurable>{{1, core::Rank{2}, {7, 8}, {}}}));
  EXPECT_EQ(asked<OpenSave>(writer.effects).size(), 1u);
  EXPECT_EQ(asked<StageChunk>(writer.effects).size(), 3u);
  EXPECT_EQ(asked<WriteChunk>(writer.effects).size(), 3u);
  EXPECT_EQ(asked<FinishFiles>(writer.effects).size(), 1u);
  EXPECT_EQ(asked<CloseSave>(writer.effects).size(), 1u);
  EXPECT_EQ(released(writer.effects, 1), kAllBuckets);
  EXPECT_EQ(writer.machine.state(), "committed");
}

// Covers stored-3.
TEST(CheckpointWriter, AnnouncesItsStructuresHashAndRankZerosCommonValues) {
  Writer writer;
  auto config = small_writer();
  config.rank = core::Rank{0};
  CheckpointWriterMachine first(config);

  const auto mine = sent<messages::SaveAnnounced>(writer.say(began(1)));
  const auto theirs = sent<messages::SaveAnnounced>(MachineProbe(first).say(began(1)));

  const auto hash = core::hash64(core::to_text(small_writer().structure));
  ASSERT_EQ(mine.size(), 1u);
  EXPECT_EQ(mine[0], (messages::SaveAnnounced{
                         1, core::Rank{2}, {4}, hash, core::hash64(std::string_view("null")), "", "", "[]"}));
  ASSERT_EQ(theirs.size(), 1u);
  EXPECT_EQ(theirs[0].common, "null");
  EXPECT_EQ(theirs[0].topology, "{}");
}

TEST(CheckpointWriter, KeepsBucketsThatAreHeldBeforeTheSaveBegins) {
  Writer writer;
  writer.say(BucketHeld{2, 0});
  writer.say(BucketHeld{1, 0});
  writer.say(BucketHeld{1, 1});
  writer.say(began(1));

  const auto effects = writer.say(SavePlanned{1, "d", {0, 1}});

  EXPECT_EQ(asked<StageChunk>(effects).size(), 2u);
  writer.say(over(1, kNoSpace));
  writer.say(ChunkStaged{1, 0, 0});
  writer.say(ChunkStaged{1, 1, 1});
  writer.say(began(2));
  EXPECT_EQ(asked<StageChunk>(writer.say(SavePlanned{2, "d", {0, 1}})).size(), 2u) << "bucket 0 of save 2";
}

TEST(CheckpointWriter, StagesNothingOfABucketThatIsNotHeld) {
  Writer writer;
  writer.say(began(1));
  writer.say(BucketHeld{1, 1});

  const auto planned = writer.say(SavePlanned{1, "d", {0, 1}});
  const auto held = writer.say(BucketHeld{1, 0});

  EXPECT_TRUE(asked<StageChunk>(planned).empty()) << "chunks come in order, and bucket 0 is not held";
  EXPECT_EQ(asked<StageChunk>(held).size(), 2u);
}

TEST(CheckpointWriter, WithoutPiecesReleasesAllAtOnceAndIsDurable) {
  Writer writer;
  writer.say(began(1));

  const auto effects = writer.say(SavePlanned{1, "d", {}});
  const auto durable = writer.say(FilesDurable{1, {}, {}, {}});

  EXPECT_EQ(released(effects, 1), kAllBuckets);
  EXPECT_EQ(asked<FinishFiles>(effects).size(), 1u);
  EXPECT_EQ(sent<FilesDurable>(durable), (std::vector<FilesDurable>{{1, core::Rank{2}, {}, {}}}));
}

TEST(CheckpointWriter, ReleasesABucketAsSoonAsItIsStaged) {
  Writer writer;
  writer.begin(1);

  writer.say(ChunkStaged{1, 0, 0});
  EXPECT_EQ(released(writer.effects, 1), (std::vector<std::uint32_t>{})) << "half of bucket 0";
  writer.say(ChunkStaged{1, 1, 1});

  EXPECT_EQ(released(writer.effects, 1), (std::vector<std::uint32_t>{0}));
}

// Covers local-15.
TEST(CheckpointWriter, FailedWriteEndsItsPartNamingTheRankOnce) {
  for (const std::string state : {"staging", "staged"}) {
    Writer writer;
    writer.drive_to(state);
    writer.end_copies(state);

    const auto effects = writer.say(ChunkWritten{1, 1, 1, kNoSpace});
    const auto second = writer.say(ChunkWritten{1, 2, 0, kNoSpace});

    EXPECT_EQ(sent<messages::SaveFailed>(effects),
              (std::vector<messages::SaveFailed>{{1, core::Rank{2}, kNoSpace}}));
    EXPECT_EQ(asked<CloseSave>(effects).size(), 1u);
    EXPECT_EQ(released(writer.effects, 1), kAllBuckets);
    EXPECT_TRUE(sent<messages::SaveFailed>(second).empty());
    EXPECT_EQ(writer.machine.state(), "failed");
  }
}

TEST(CheckpointWriter, FilesThatAreNotDurableFailTheSave) {
  Writer writer;
  writer.drive_to("written");

  const auto effects = writer.say(FilesDurable{1, {}, {}, kNoSpace});

  EXPECT_EQ(sent<messages::SaveFailed>(effects).size(), 1u);
  EXPECT_TRUE(sent<FilesDurable>(effects).empty());
  EXPECT_EQ(writer.machine.state(), "failed");
}

TEST(CheckpointWriter, PlanThatItsStructureLacksFailsTheSave) {
  for (const auto& pieces : std::vector<std::vector<std::uint32_t>>{{2}, {0, 99}, {1, 0}, {0, 0}}) {
    Writer writer;
    writer.say(began(1));

    const auto effects = writer.say(SavePlanned{1, "d", pieces});

    ASSERT_EQ(sent<messages::SaveFailed>(effects).size(), 1u);
    EXPECT_TRUE(asked<OpenSave>(effects).empty());
    EXPECT_EQ(released(writer.effects, 1), kAllBuckets);
    EXPECT_EQ(writer.machine.state(), "failed");
  }
}

// Covers local-13.
TEST(CheckpointWriter, BeginsThePlannedNextSaveWhenTheFirstEnds) {
  Writer writer;
  writer.drive_to("durable");
  writer.begin(2);
  EXPECT_EQ(asked<OpenSave>(writer.effects).size(), 1u);

  const auto effects = writer.say(over(1));

  ASSERT_EQ(asked<OpenSave>(effects).size(), 1u);
  EXPECT_EQ(asked<OpenSave>(effects).at(0).sequence, 2u);
  EXPECT_EQ(asked<StageChunk>(effects).size(), 2u);
  EXPECT_EQ(writer.machine.state(), "staging");
}

TEST(CheckpointWriter, SendsALargeStructureInMessageSizedParts) {
  auto config = small_writer();
  for (int i = 0; i < 4000; ++i) {
    config.structure.tensors.push_back({"tensor " + std::string(100, 'x') + std::to_string(i), {}, {4}});
  }
  CheckpointWriterMachine machine(config);
  const auto text = core::to_text(config.structure);

  MachineProbe probe(machine);

  std::string joined;
  std::uint32_t parts = 1;
  for (std::uint32_t part = 0; part < parts; ++part) {
    const auto answer =
        sent<messages::StructurePart>(probe.say(messages::StructureWanted{core::hash64(text), part}));
    ASSERT_EQ(answer.size(), 1u) << "only what was asked for, because a connection queues only so much";
    EXPECT_EQ(answer[0].part, part);
    parts = answer[0].parts;
    EXPECT_LE(answer[0].text.size(), std::size_t{512} << 10);
    joined += answer[0].text;
  }

  EXPECT_GT(parts, 1u);
  EXPECT_EQ(joined, text);
  EXPECT_TRUE(probe.say(messages::StructureWanted{core::hash64(text), parts}).empty());
}

/// A writer that gives a save up which holds training up for ten seconds.
CheckpointWriterConfig impatient_writer() {
  auto config = small_writer();
  config.hold_deadline = std::chrono::seconds(10);
  return config;
}

TEST(CheckpointWriter, GivesUpASaveThatHoldsBucketsTooLong) {
  for (const std::string state : {"accepted", "staging"}) {
    Writer writer{CheckpointWriterMachine(impatient_writer())};
    writer.drive_to(state);

    auto effects = writer.timer();
    effects += writer.end_copies(state);

    EXPECT_EQ(released(effects, 1), kAllBuckets);
    ASSERT_EQ(sent<messages::SaveFailed>(effects).size(), 1u);
    EXPECT_EQ(sent<messages::SaveFailed>(effects).at(0).failure.code, Errc::timeout);
    EXPECT_THAT(sent<messages::SaveFailed>(effects).at(0).failure.message,
                testing::HasSubstr("held up training for 10 s"));
    EXPECT_EQ(writer.machine.state(), "failed");
  }
}

TEST(CheckpointWriter, GivesNoSaveUpThatHoldsNothingAnyMore) {
  for (const std::string state : {"staged", "written", "durable", "failed"}) {
    Writer writer{CheckpointWriterMachine(impatient_writer())};
    writer.drive_to(state);

    EXPECT_TRUE(writer.timer().empty());
    EXPECT_EQ(writer.machine.state(), state);
  }
}

TEST(CheckpointWriter, RepeatsAFailureWhenThePlanComesLater) {
  Writer writer{CheckpointWriterMachine(impatient_writer())};
  writer.drive_to("staged");
  writer.say(began(2));
  const auto given_up = writer.timer();

  writer.say(over(1));
  const auto again = writer.say(SavePlanned{2, "d", {0, 1}});

  EXPECT_EQ(released(given_up, 2), kAllBuckets);
  ASSERT_EQ(sent<messages::SaveFailed>(again).size(), 1u);
  EXPECT_EQ(sent<messages::SaveFailed>(again).at(0).failure.code, Errc::timeout);
  EXPECT_TRUE(asked<OpenSave>(again).empty());
  EXPECT_EQ(writer.machine.state(), "failed");
}

TEST(CheckpointWriter, SaysWhatItWaitsFor) {
  const std::vector<std::pair<std::string, std::string>> table{{"accepted", "plan of save 1"},
                                                               {"staging", "0 of 3 chunks"},
                                                               {"staged", "3 of 3 chunks are staged, 1"},
                                                               {"written", "durable"},
                                                               {"durable", "word on save 1"},
                                                               {"failed", "word on save 1"}};
  for (const auto& [state, words] : table) {
    Writer writer;
    writer.drive_to(state);

    EXPECT_THAT(writer.machine.waiting_for(), testing::HasSubstr(words)) << state;
  }
}

/// The roles that were told that a save needs their bucket no longer.
std::vector<messages::Address> released_to(const std::vector<Effect>& effects) {
  std::vector<messages::Address> found;
  for (const auto& effect : effects) {
    const auto* send = std::get_if<Send>(&effect);
    if (send != nullptr && std::holds_alternative<BucketStaged>(send->body)) found.push_back(send->to);
  }
  return found;
}

TEST(CheckpointWriter, TellsTheTrainerWhenItsOwnTensorsAreCopied) {
  auto config = small_writer();
  config.buckets = 1;
  config.trainer_holds = true;
  CheckpointWriterMachine machine(std::move(config));
  MachineProbe probe(machine);
  probe.say(began(1));
  probe.say(SavePlanned{1, "d", {0, 1}});
  probe.say(BucketHeld{1, 0});
  probe.say(ChunkStaged{1, 0, 0});
  EXPECT_EQ(released_to(probe.say(ChunkStaged{1, 1, 1})),
            (std::vector{messages::Address{core::Rank{2}, messages::Role::parameter_shard, 0}}));
  probe.say(ChunkWritten{1, 0, 0, {}});
  probe.say(BucketHeld{1, 1});
  EXPECT_EQ(released_to(probe.say(ChunkStaged{1, 2, 0})),
            (std::vector{messages::Address{core::Rank{2}, messages::Role::trainer, 0}}));
}

}  // namespace
}  // namespace troupe::actors
