#include "actors/roles/gradient_bucket.hpp"

#include <gtest/gtest.h>

#include "tests/actors/support/machine_probe.hpp"

namespace troupe::actors {
namespace {

using core::Lane;
using core::Step;
using messages::CollectiveReady;
using messages::GradientReady;
using messages::LaneEnded;
using messages::ShardStepped;
using messages::StepBegan;

GradientBucketConfig two_parameters() {
  GradientBucketConfig config;
  config.parameters = {{4}, {7}};
  config.names = {"weight", "bias"};
  config.rounds = {{Lane{0}, {{2}}}};
  return config;
}

/// Runs the first step up to its reduction; the machine learns that each parameter comes once.
void learn_without_an_update(MachineProbe& probe) {
  probe.say(StepBegan{Step{0}});
  probe.say(GradientReady{Step{0}, Lane{0}, 4});
  probe.say(GradientReady{Step{0}, Lane{0}, 7});
  probe.say(LaneEnded{Step{0}, Lane{0}});
}

void learn(MachineProbe& probe) {
  learn_without_an_update(probe);
  probe.say(ShardStepped{Step{0}, 0});
}

TEST(GradientBucket, LaunchesTheFirstStepOnlyWhenBackwardHasEnded) {
  GradientBucketMachine machine(two_parameters());
  MachineProbe probe(machine);
  probe.say(StepBegan{Step{0}});

  probe.say(GradientReady{Step{0}, Lane{0}, 4});
  auto early = probe.say(GradientReady{Step{0}, Lane{0}, 7});
  auto end = probe.say(LaneEnded{Step{0}, Lane{0}});

  EXPECT_TRUE(early.empty());
  EXPECT_EQ(sent<CollectiveReady>(end), (std::vector<CollectiveReady>{{Step{0}, 2}}));
  ASSERT_EQ(performed<PrepareBucket>(end).size(), 1u);
  EXPECT_TRUE(performed<PrepareBucket>(end)[0].last);
}

// Covers buffer-4.
TEST(GradientBucket, LaunchesWithTheLastGradientOnceItHasLearned) {
  GradientBucketMachine machine(two_parameters());
  MachineProbe probe(machine);
  learn(probe);
  probe.say(StepBegan{Step{1}});

  auto first = probe.say(GradientReady{Step{1}, Lane{0}, 7});
  auto last = probe.say(GradientReady{Step{1}, Lane{0}, 4});
  auto end = probe.say(LaneEnded{Step{1}, Lane{0}});

  EXPECT_TRUE(first.empty());
  EXPECT_EQ(sent<CollectiveReady>(last), (std::vector<CollectiveReady>{{Step{1}, 2}}));
  EXPECT_TRUE(sent<CollectiveReady>(end).empty());
  EXPECT_EQ(sent<messages::BucketReady>(end), (std::vector<messages::BucketReady>{{Step{1}, 0, ""}}));
}

// Covers buffer-5.
TEST(GradientBucket, WithoutOverlapWaitsForTheEndOfBackward) {
  auto config = two_parameters();
  config.overlap = false;
  GradientBucketMachine machine(config);
  MachineProbe probe(machine);
  learn(probe);
  probe.say(StepBegan{Step{1}});

  probe.say(GradientReady{Step{1}, Lane{0}, 7});
  auto last = probe.say(GradientReady{Step{1}, Lane{0}, 4});
  auto end = probe.say(LaneEnded{Step{1}, Lane{0}});

  EXPECT_TRUE(last.empty());
  EXPECT_EQ(sent<CollectiveReady>(end).size(), 1u);
}

TEST(GradientBucket, ExpectsParametersAsOftenAsInTheFirstLane) {
  GradientBucketMachine machine(two_parameters());
  MachineProbe probe(machine);
  probe.say(StepBegan{Step{0}});
  probe.say(GradientReady{Step{0}, Lane{0}, 4});
  probe.say(GradientReady{Step{0}, Lane{0}, 4});
  probe.say(GradientReady{Step{0}, Lane{0}, 7});
  probe.say(LaneEnded{Step{0}, Lane{0}});
  probe.say(ShardStepped{Step{0}, 0});
  probe.say(StepBegan{Step{1}});

  probe.say(GradientReady{Step{1}, Lane{0}, 7});
  auto once = probe.say(GradientReady{Step{1}, Lane{0}, 4});
  auto twice = probe.say(GradientReady{Step{1}, Lane{0}, 4});

  EXPECT_TRUE(once.empty());
  EXPECT_EQ(sent<CollectiveReady>(twice).size(), 1u);
}

TEST(GradientBucket, NamesAParameterThatGaveNoGradient) {
  GradientBucketMachine machine(two_parameters());
  MachineProbe probe(machine);
  learn(probe);
  probe.say(StepBegan{Step{1}});
  probe.say(GradientReady{Step{1}, Lane{0}, 4});

  auto end = probe.say(LaneEnded{Step{1}, Lane{0}});

  EXPECT_EQ(sent<CollectiveReady>(end).size(), 1u) << "the others must not wait for ever";
  ASSERT_EQ(sent<messages::BucketReady>(end).size(), 1u);
  EXPECT_NE(sent<messages::BucketReady>(end)[0].refusal.find("parameter bias gave 0 of 1"),
            std::string::npos);
}

TEST(GradientBucket, TakesMissingGradientsForZerosWhenDeclared) {
  auto config = two_parameters();
  config.unused = core::UnusedParameters::zeros;
  GradientBucketMachine machine(config);
  MachineProbe probe(machine);
  learn(probe);
  probe.say(StepBegan{Step{1}});
  probe.say(GradientReady{Step{1}, Lane{0}, 4});

  auto end = probe.say(LaneEnded{Step{1}, Lane{0}});

  EXPECT_EQ(sent<messages::BucketReady>(end)[0].refusal, "");
}

TEST(GradientBucket, LearnsRepetitionFromAParametersFirstLane) {
  auto config = two_parameters();
  config.unused = core::UnusedParameters::zeros;
  GradientBucketMachine machine(config);
  MachineProbe probe(machine);
  const auto begin = [&](Step step) {
    probe.say(StepBegan{step});
    probe.say(GradientReady{step, Lane{0}, 7});
  };
  const auto end = [&](Step step) {
    const auto ended = probe.say(LaneEnded{step, Lane{0}});
    probe.say(ShardStepped{step, 0});
    return ended;
  };
  const auto give = [&](Step step) { return probe.say(GradientReady{step, Lane{0}, 4}); };
  begin(Step{0});
  const auto without = end(Step{0});

  begin(Step{1});
  const auto early = give(Step{1});
  const auto again = give(Step{1});
  const auto second = end(Step{1});
  begin(Step{2});
  const auto once = give(Step{2});
  const auto twice = give(Step{2});
  const auto third = end(Step{2});

  EXPECT_EQ(sent<CollectiveReady>(without).size(), 1u);
  EXPECT_TRUE(early.empty());
  EXPECT_TRUE(again.empty()) << "more may come";
  EXPECT_EQ(sent<CollectiveReady>(second).size(), 1u);
  EXPECT_TRUE(once.empty());
  EXPECT_EQ(sent<CollectiveReady>(twice).size(), 1u);
  for (const auto& ended : {without, second, third}) {
    ASSERT_EQ(sent<messages::BucketReady>(ended).size(), 1u);
    EXPECT_EQ(sent<messages::BucketReady>(ended)[0].refusal, "");
  }
}

TEST(GradientBucket, RefusesAGradientMoreThanLearned) {
  GradientBucketMachine machine(two_parameters());
  MachineProbe probe(machine);
  learn(probe);
  probe.say(StepBegan{Step{1}});
  probe.say(GradientReady{Step{1}, Lane{0}, 4});
  probe.say(GradientReady{Step{1}, Lane{0}, 7});

  probe.say(GradientReady{Step{1}, Lane{0}, 7});
  auto end = probe.say(LaneEnded{Step{1}, Lane{0}});

  EXPECT_NE(sent<messages::BucketReady>(end)[0].refusal.find("parameter bias gave 2"), std::string::npos);
}

TEST(GradientBucket, MergesEveryLaneAndLaunchesAfterTheLast) {
  auto config = two_parameters();
  config.rounds = {{Lane{2}, {}}, {Lane{3}, {{2}}}};
  GradientBucketMachine machine(config);
  MachineProbe probe(machine);
  probe.say(StepBegan{Step{0}});
  probe.say(GradientReady{Step{0}, Lane{2}, 4});
  probe.say(GradientReady{Step{0}, Lane{2}, 7});
  auto first = probe.say(LaneEnded{Step{0}, Lane{2}});

  probe.say(GradientReady{Step{0}, Lane{3}, 7});
  auto second = probe.say(GradientReady{Step{0}, Lane{3}, 4});

  ASSERT_EQ(performed<PrepareBucket>(first).size(), 1u);
  EXPECT_FALSE(performed<PrepareBucket>(first)[0].last);
  EXPECT_TRUE(sent<messages::BucketReady>(first).empty());
  ASSERT_EQ(performed<PrepareBucket>(second).size(), 1u);
  EXPECT_TRUE(performed<PrepareBucket>(second)[0].last);
}

/// Where gradients are sharded each round reduces its lane, and the last one may have none.
TEST(GradientBucket, LaunchesEveryRoundWithEntriesEvenWithoutALane) {
  auto config = two_parameters();
  config.rounds = {{Lane{2}, {{1}}}, {Lane{5}, {{4}}}, {Lane{-1}, {{6}, {7}}}};
  GradientBucketMachine machine(config);
  MachineProbe probe(machine);
  probe.say(StepBegan{Step{0}});
  const auto give = [&](Lane lane) {
    probe.say(GradientReady{Step{0}, lane, 4});
    probe.say(GradientReady{Step{0}, lane, 7});
    return probe.say(LaneEnded{Step{0}, lane});
  };

  EXPECT_EQ(sent<CollectiveReady>(give(Lane{2})), (std::vector<CollectiveReady>{{Step{0}, {1}}}));
  probe.say(messages::CollectiveDone{Step{0}, {1}, 0, {}});
  probe.say(GradientReady{Step{0}, Lane{5}, 4});
  EXPECT_EQ(sent<CollectiveReady>(probe.say(GradientReady{Step{0}, Lane{5}, 7})),
            (std::vector<CollectiveReady>{{Step{0}, {4}}}))
      << "it has learned what comes in a lane";
  EXPECT_TRUE(sent<CollectiveReady>(probe.say(LaneEnded{Step{0}, Lane{5}})).empty());
  const auto last = probe.say(LaneEnded{Step{0}, Lane{-1}});

  EXPECT_EQ(sent<CollectiveReady>(last), (std::vector<CollectiveReady>{{Step{0}, {6}}, {Step{0}, {7}}}));
  ASSERT_EQ(sent<messages::BucketReady>(last).size(), 1U);
  EXPECT_EQ(sent<messages::BucketReady>(last)[0].refusal, "") << "nobody expects gradients of no lane";
  for (const std::int32_t entry : {4, 6}) {
    EXPECT_TRUE(
        sent<messages::BucketReduced>(probe.say(messages::CollectiveDone{Step{0}, {entry}, 0, {}})).empty());
  }
  EXPECT_EQ(sent<messages::BucketReduced>(probe.say(messages::CollectiveDone{Step{0}, {7}, 0, {}})).size(),
            1U);
}

TEST(GradientBucket, SaysReducedOnlyAfterAllItsCollectivesAreDone) {
  auto config = two_parameters();
  config.rounds.back().entries = {{2}, {3}};
  GradientBucketMachine machine(config);
  MachineProbe probe(machine);
  learn(probe);

  auto stale = probe.say(messages::CollectiveDone{Step{7}, 2, 0, {}});
  auto first = probe.say(messages::CollectiveDone{Step{0}, 2, 0, {}});
  auto second = probe.say(messages::CollectiveDone{Step{0}, 3, 1, {}});

  EXPECT_TRUE(stale.empty());
  EXPECT_TRUE(first.empty());
  EXPECT_EQ(sent<messages::BucketReduced>(second), (std::vector<messages::BucketReduced>{{Step{0}, 0}}));
}

TEST(GradientBucket, PreparesNothingBeforeThePreviousUpdateClearedItsGradients) {
  auto config = two_parameters();
  config.unused = core::UnusedParameters::zeros;
  config.rounds = {{Lane{0}, {}}, {Lane{1}, {{2}}}};
  GradientBucketMachine machine(config);
  MachineProbe probe(machine);
  probe.say(StepBegan{Step{0}});
  probe.say(LaneEnded{Step{0}, Lane{0}});
  probe.say(LaneEnded{Step{0}, Lane{1}});
  probe.say(StepBegan{Step{1}});

  auto first = probe.say(LaneEnded{Step{1}, Lane{0}});
  auto second = probe.say(LaneEnded{Step{1}, Lane{1}});
  std::string why = machine.waiting_for();
  auto other = probe.say(ShardStepped{Step{7}, 0});
  auto stepped = probe.say(ShardStepped{Step{0}, 0});

  EXPECT_TRUE(performed<PrepareBucket>(first).empty());
  EXPECT_TRUE(performed<PrepareBucket>(second).empty());
  EXPECT_TRUE(sent<CollectiveReady>(second).empty());
  EXPECT_EQ(sent<messages::BucketReady>(second).size(), 1u) << "the trainer has given all it gives";
  EXPECT_EQ(why, "the update of step 0");
  EXPECT_TRUE(other.empty());
  auto prepared = performed<PrepareBucket>(stepped);
  ASSERT_EQ(prepared.size(), 2u);
  EXPECT_EQ(prepared[0].lane, Lane{0});
  EXPECT_FALSE(prepared[0].last);
  EXPECT_EQ(prepared[1].lane, Lane{1});
  EXPECT_TRUE(prepared[1].last);
  EXPECT_EQ(sent<CollectiveReady>(stepped), (std::vector<CollectiveReady>{{Step{1}, 2}}));
}

TEST(GradientBucket, IsReadyWithItsLastGradientDespiteLateUpdates) {
  GradientBucketMachine machine(two_parameters());
  MachineProbe probe(machine);
  learn_without_an_update(probe);
  probe.say(StepBegan{Step{1}});
  probe.say(GradientReady{Step{1}, Lane{0}, 7});

  auto last = probe.say(GradientReady{Step{1}, Lane{0}, 4});
  auto stepped = probe.say(ShardStepped{Step{0}, 0});
  auto end = probe.say(LaneEnded{Step{1}, Lane{0}});

  EXPECT_TRUE(last.empty());
  EXPECT_EQ(performed<PrepareBucket>(stepped).size(), 1u);
  EXPECT_EQ(sent<CollectiveReady>(stepped).size(), 1u);
  EXPECT_TRUE(performed<PrepareBucket>(end).empty()) << "once is enough";
}

TEST(GradientBucket, IgnoresGradientsOfAnotherStepOrLane) {
  GradientBucketMachine machine(two_parameters());
  MachineProbe probe(machine);
  learn(probe);
  probe.say(StepBegan{Step{1}});

  probe.say(GradientReady{Step{0}, Lane{0}, 4});
  probe.say(GradientReady{Step{1}, Lane{5}, 4});
  auto last = probe.say(GradientReady{Step{1}, Lane{0}, 7});

  EXPECT_TRUE(last.empty());
  EXPECT_EQ(machine.waiting_for(), "gradients of step 1: weight");
}

}  // namespace
}  // namespace troupe::actors
