#include <gtest/gtest.h>

#include "actors/roles/checkpoint_writer.hpp"
#include "tests/actors/planes/checkpoint/checkpoint_work.hpp"
#include "tests/actors/support/machine_probe.hpp"

namespace troupe::actors {
namespace {

using messages::BucketHeld;
using messages::ChunkStaged;
using messages::ChunkWritten;
using messages::SavePlanned;

const messages::SaveBegan kBegan{1, {4}, "{}", "null", "[]"};

/// A writer with a structure that the test gives it.
CheckpointWriterConfig writer_of_two_buckets() {
  CheckpointWriterConfig config;
  config.rank = core::Rank{2};
  config.buckets = 2;
  config.bucket_of = {{0}, {1}};
  config.chunk_bytes = 16;
  return config;
}

/// Bucket 0 makes a chunk of 16 bytes and one of 8, bucket 1 one of 8.
TEST(CheckpointWriterCredits, TakesTheSmallestStagingBufferThatHoldsAChunk) {
  auto config = writer_of_two_buckets();
  config.structure.tensors = {{"a", core::DType::f32, {6}}, {"b", core::DType::f32, {2}}};
  config.structure.pieces = {{0, core::Box::whole({6})}, {1, core::Box::whole({2})}};
  config.staging = {8, 16};
  CheckpointWriterMachine machine(config);
  MachineProbe probe(machine);
  probe.say(kBegan);
  probe.say(SavePlanned{1, "d", {0, 1}});

  auto first = asked<StageChunk>(probe.say(BucketHeld{1, 0}));
  auto other = asked<StageChunk>(probe.say(BucketHeld{1, 1}));
  probe.say(ChunkStaged{1, 0, 1});
  auto freed = asked<StageChunk>(probe.say(ChunkWritten{1, 0, 1, {}}));

  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[0].credit, 1u);
  EXPECT_EQ(first[1].credit, 0u);
  EXPECT_TRUE(other.empty()) << "both are in use";
  ASSERT_EQ(freed.size(), 1u);
  EXPECT_EQ(freed[0].credit, 1u) << "a larger one does";
}

TEST(CheckpointWriterCredits, AwaitLargeEnoughBuffersThoughSmallerAreFree) {
  auto config = writer_of_two_buckets();
  config.structure.tensors = {{"a", core::DType::f32, {8}}};
  config.structure.pieces = {{0, core::Box::whole({8})}};
  config.bucket_of = {{0}};
  config.staging = {8, 16};
  CheckpointWriterMachine machine(config);
  MachineProbe probe(machine);
  probe.say(kBegan);
  probe.say(SavePlanned{1, "d", {0}});

  auto first = asked<StageChunk>(probe.say(BucketHeld{1, 0}));
  probe.say(ChunkStaged{1, 0, 1});
  auto second = asked<StageChunk>(probe.say(ChunkWritten{1, 0, 1, {}}));

  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].credit, 1u);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].chunk, 1u);
  EXPECT_EQ(second[0].credit, 1u);
}

}  // namespace
}  // namespace troupe::actors
