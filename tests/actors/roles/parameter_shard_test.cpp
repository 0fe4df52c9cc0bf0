#include "actors/roles/parameter_shard.hpp"

#include <gtest/gtest.h>

#include "tests/actors/support/machine_probe.hpp"

namespace troupe::actors {
namespace {

using core::Step;
using messages::CollectiveDone;
using messages::Published;
using messages::ShardStepped;

messages::StepDecided decided(Step step, bool commit) {
  messages::StepDecided message;
  message.step = step;
  message.commit = commit;
  return message;
}

// Covers ready-5.
TEST(ParameterShard, PublishesOnlyAfterTheUpdateAndTheGather) {
  ParameterShardMachine machine({.rank = {}, .bucket = {1}, .gather_entries = {{9}}});
  MachineProbe probe(machine);

  auto update = probe.say(decided(Step{0}, true));
  auto stepped = probe.say(ShardStepped{Step{0}, 1});
  std::string between(machine.state());
  auto gathered = probe.say(CollectiveDone{Step{0}, 9, 0, {}});

  EXPECT_EQ(performed<StepShard>(update).size(), 1u);
  EXPECT_EQ(sent<messages::CollectiveReady>(update), (std::vector<messages::CollectiveReady>{{Step{0}, 9}}));
  EXPECT_TRUE(sent<Published>(stepped).empty());
  EXPECT_EQ(between, "gathering");
  EXPECT_EQ(sent<Published>(gathered), (std::vector<Published>{{Step{0}, 1}}));
}

// Covers ready-4.
TEST(ParameterShard, PublishesOnceWhenTheGatherPrecedesTheUpdate) {
  ParameterShardMachine machine({.rank = {}, .bucket = {1}, .gather_entries = {{9}}});
  MachineProbe probe(machine);
  probe.say(decided(Step{0}, true));

  auto gathered = probe.say(CollectiveDone{Step{0}, 9, 0, {}});
  auto stepped = probe.say(ShardStepped{Step{0}, 1});

  EXPECT_TRUE(sent<Published>(gathered).empty());
  EXPECT_EQ(sent<Published>(stepped).size(), 1u);
}

// Covers ready-5.
TEST(ParameterShard, PublishesWhenTheLastOfSeveralGathersIsThrough) {
  ParameterShardMachine machine({.rank = {}, .bucket = {1}, .gather_entries = {{8}, {9}}});
  MachineProbe probe(machine);
  probe.say(decided(Step{0}, true));
  probe.say(ShardStepped{Step{0}, 1});

  EXPECT_TRUE(sent<Published>(probe.say(CollectiveDone{Step{0}, 8, 0, {}})).empty());
  EXPECT_EQ(sent<Published>(probe.say(CollectiveDone{Step{0}, 9, 0, {}})).size(), 1u);
}

TEST(ParameterShard, StepsByTheClippedGradientWithoutTheLossScale) {
  ParameterShardMachine machine({.rank = {}, .bucket = {1}, .gather_entries = {}});
  MachineProbe probe(machine);
  auto decision = decided(Step{0}, true);
  decision.clip_factor = 0.5;
  decision.loss_scale = 8;

  const auto update = performed<StepShard>(probe.say(decision));

  ASSERT_EQ(update.size(), 1u);
  EXPECT_EQ(update[0].gradient_factor, 0.0625);
}

TEST(ParameterShard, ThatIsFrozenIsPublishedAndNotStepped) {
  ParameterShardMachine machine({.rank = {}, .bucket = {1}, .gather_entries = {}, .trainable = false});
  MachineProbe probe(machine);

  for (const auto step : {Step{0}, Step{1}}) {
    const auto update = probe.say(decided(step, true));

    EXPECT_TRUE(performed<StepShard>(update).empty());
    EXPECT_EQ(sent<Published>(update), (std::vector<Published>{{step, 1}}));
    EXPECT_EQ(sent<messages::ShardUpdated>(update), (std::vector<messages::ShardUpdated>{{step, 1}}));
  }
}

TEST(ParameterShard, GathersAUnitOnceThePreviousUpdateIsEnqueued) {
  ParameterShardMachine machine({.rank = {}, .bucket = {1}, .gather_entries = {}});
  MachineProbe probe(machine);
  using messages::CollectiveReady, messages::UnitGathered, messages::UnitWanted;

  auto first = probe.say(UnitWanted{Step{0}, {3}});
  auto early = probe.say(UnitWanted{Step{1}, {3}});
  auto update = probe.say(decided(Step{0}, true));
  auto over = probe.say(CollectiveDone{Step{1}, {3}, 0, {}});

  EXPECT_EQ(sent<CollectiveReady>(first), (std::vector<CollectiveReady>{{Step{0}, {3}}}));
  EXPECT_TRUE(early.empty());
  EXPECT_EQ(sent<CollectiveReady>(update), (std::vector<CollectiveReady>{{Step{1}, {3}}}));
  EXPECT_EQ(sent<UnitGathered>(over), (std::vector<UnitGathered>{{Step{1}, {3}, {1}}}));
}

TEST(ParameterShard, WithoutAGatherPublishesAfterTheUpdate) {
  ParameterShardMachine machine({});
  MachineProbe probe(machine);
  probe.say(decided(Step{0}, true));

  auto stepped = probe.say(ShardStepped{Step{0}, 0});

  EXPECT_EQ(sent<Published>(stepped).size(), 1u);
  EXPECT_EQ(sent<messages::ShardUpdated>(stepped).size(), 1u);
}

TEST(ParameterShard, GathersNothingWhenTheStepIsNotCommitted) {
  ParameterShardMachine machine({.rank = {}, .bucket = {0}, .gather_entries = {{9}}});
  MachineProbe probe(machine);

  auto update = probe.say(decided(Step{0}, false));
  auto stepped = probe.say(ShardStepped{Step{0}, 0});

  ASSERT_EQ(performed<StepShard>(update).size(), 1u);
  EXPECT_FALSE(performed<StepShard>(update)[0].commit);
  EXPECT_TRUE(sent<messages::CollectiveReady>(update).empty());
  EXPECT_EQ(sent<Published>(stepped).size(), 1u);
}

// Covers ready-4, unit-29.
TEST(ParameterShard, AppliesADecisionOnce) {
  ParameterShardMachine machine({});
  MachineProbe probe(machine);
  probe.say(decided(Step{3}, true));

  auto again = probe.say(decided(Step{3}, true));
  auto older = probe.say(decided(Step{2}, true));

  EXPECT_TRUE(again.empty());
  EXPECT_TRUE(older.empty());
}

messages::SaveBegan save_of(std::uint64_t sequence, Step step) {
  return {sequence, step, "{}", "null", "[]"};
}

TEST(ParameterShard, HoldsBucketsUntilStagedThenAppliesTheNextStep) {
  ParameterShardMachine machine({.rank = {}, .bucket = {1}, .gather_entries = {{9}}});
  MachineProbe probe(machine);
  probe.say(decided(Step{0}, true));
  probe.say(ShardStepped{Step{0}, 1});
  probe.say(CollectiveDone{Step{0}, 9, 0, {}});

  auto held = probe.say(save_of(1, Step{0}));
  auto waiting = probe.say(decided(Step{1}, true));
  std::string why = machine.waiting_for();
  auto released = probe.say(messages::BucketStaged{1});

  EXPECT_EQ(sent<messages::BucketHeld>(held), (std::vector<messages::BucketHeld>{{1, 1}}));
  EXPECT_TRUE(waiting.empty());
  EXPECT_EQ(why, "save 1 to stage the bucket");
  ASSERT_EQ(performed<StepShard>(released).size(), 1u);
  EXPECT_EQ(performed<StepShard>(released)[0].step, Step{1});
  EXPECT_TRUE(probe.say(messages::BucketStaged{1}).empty());
}

TEST(ParameterShard, ReportsBucketsHeldOnceTheWantedStepIsApplied) {
  ParameterShardMachine machine({});
  MachineProbe probe(machine);

  auto early = probe.say(save_of(1, Step{0}));
  auto applied = probe.say(decided(Step{0}, true));
  auto next = probe.say(decided(Step{1}, true));

  EXPECT_TRUE(early.empty()) << "step 0 is decided, but its update is still on its way here";
  EXPECT_EQ(performed<StepShard>(applied).size(), 1u);
  EXPECT_EQ(sent<messages::BucketHeld>(applied).size(), 1u);
  EXPECT_TRUE(next.empty());
}

TEST(ParameterShard, WaitsForEverySaveThatWantsTheBucketUnchanged) {
  ParameterShardMachine machine({});
  MachineProbe probe(machine);
  probe.say(save_of(1, Step{-1}));
  probe.say(save_of(2, Step{-1}));

  probe.say(decided(Step{0}, true));
  auto first = probe.say(messages::BucketStaged{2});
  auto second = probe.say(messages::BucketStaged{1});

  EXPECT_TRUE(performed<StepShard>(first).empty());
  EXPECT_EQ(performed<StepShard>(second).size(), 1u);
}

TEST(ParameterShard, GoesOnDuringASaveIfFrozen) {
  ParameterShardMachine machine({.rank = {}, .bucket = {1}, .gather_entries = {}, .trainable = false});
  MachineProbe probe(machine);
  probe.say(save_of(1, Step{-1}));

  for (const auto step : {Step{0}, Step{1}}) {
    const auto update = probe.say(decided(step, true));

    EXPECT_EQ(sent<messages::ShardUpdated>(update), (std::vector<messages::ShardUpdated>{{step, 1}}));
  }
}

TEST(ParameterShard, ARefusedStepWaitsForTheSaveToo) {
  ParameterShardMachine machine({});
  MachineProbe probe(machine);
  probe.say(save_of(1, Step{-1}));

  auto waiting = probe.say(decided(Step{0}, false));
  auto again = probe.say(decided(Step{0}, false));
  auto released = probe.say(messages::BucketStaged{1});

  EXPECT_TRUE(waiting.empty());
  EXPECT_TRUE(again.empty());
  ASSERT_EQ(performed<StepShard>(released).size(), 1u);
  EXPECT_FALSE(performed<StepShard>(released)[0].commit);
}

TEST(ParameterShard, AppliesDecisionsThatCameDuringASaveInOrder) {
  ParameterShardMachine machine({.rank = {}, .bucket = {1}, .gather_entries = {{9}}});
  MachineProbe probe(machine);
  probe.say(save_of(1, Step{-1}));
  probe.say(save_of(2, Step{1}));

  auto first = probe.say(decided(Step{0}, true));
  auto second = probe.say(decided(Step{1}, false));
  auto third = probe.say(decided(Step{2}, true));
  auto released = probe.say(messages::BucketStaged{1});
  auto stepped = probe.say(ShardStepped{Step{0}, 1});
  auto gathered = probe.say(CollectiveDone{Step{0}, 9, 0, {}});
  auto refused = probe.say(ShardStepped{Step{1}, 1});
  auto staged = probe.say(messages::BucketStaged{2});

  EXPECT_TRUE(first.empty() && second.empty() && third.empty());
  ASSERT_EQ(performed<StepShard>(released).size(), 1u);
  EXPECT_EQ(performed<StepShard>(released)[0].step, Step{0});
  EXPECT_TRUE(performed<StepShard>(stepped).empty()) << "step 0 is not published yet";
  EXPECT_EQ(sent<Published>(gathered), (std::vector<Published>{{Step{0}, 1}}));
  ASSERT_EQ(performed<StepShard>(gathered).size(), 1u);
  EXPECT_EQ(performed<StepShard>(gathered)[0].step, Step{1});
  EXPECT_FALSE(performed<StepShard>(gathered)[0].commit);
  EXPECT_EQ(sent<messages::BucketHeld>(gathered), (std::vector<messages::BucketHeld>{{2, 1}}));
  EXPECT_EQ(sent<Published>(refused), (std::vector<Published>{{Step{1}, 1}}));
  EXPECT_TRUE(performed<StepShard>(refused).empty()) << "the second save wants the state of step 1";
  ASSERT_EQ(performed<StepShard>(staged).size(), 1u);
  EXPECT_EQ(performed<StepShard>(staged)[0].step, Step{2});
}

TEST(ParameterShard, TellsTheBucketThatItsGradientsAreClear) {
  ParameterShardMachine machine({.rank = {}, .bucket = {1}, .gather_entries = {{9}}});
  MachineProbe probe(machine);
  probe.say(decided(Step{0}, true));

  auto stepped = probe.say(ShardStepped{Step{0}, 1});

  EXPECT_EQ(sent<ShardStepped>(stepped), (std::vector<ShardStepped>{{Step{0}, 1}}));
}

TEST(ParameterShard, TheReleaseOfAnotherSaveReleasesNothing) {
  ParameterShardMachine machine({});
  MachineProbe probe(machine);
  probe.say(save_of(2, Step{-1}));
  probe.say(decided(Step{0}, true));

  auto other = probe.say(messages::BucketStaged{1});
  auto unknown = probe.say(messages::BucketStaged{7});

  EXPECT_TRUE(other.empty());
  EXPECT_TRUE(unknown.empty());
  EXPECT_EQ(machine.waiting_for(), "save 2 to stage the bucket");
}

TEST(ParameterShard, GoesOnFromTheStepThatWasRestored) {
  ParameterShardMachine machine({});
  MachineProbe probe(machine);
  probe.say(messages::StateRestored{Step{6}});

  auto old = probe.say(decided(Step{6}, true));
  auto held = probe.say(save_of(1, Step{6}));
  probe.say(messages::BucketStaged{1});
  auto next = probe.say(decided(Step{7}, true));

  EXPECT_TRUE(old.empty());
  EXPECT_EQ(sent<messages::BucketHeld>(held).size(), 1u);
  EXPECT_EQ(performed<StepShard>(next).size(), 1u);
}

}  // namespace
}  // namespace troupe::actors
