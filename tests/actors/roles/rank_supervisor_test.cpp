#include "actors/roles/rank_supervisor.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/actors/support/machine_probe.hpp"

namespace troupe::actors {
namespace {

using core::Rank;
using core::Step;
using messages::StepDecided;

RankSupervisorConfig two_buckets() {
  RankSupervisorConfig config;
  config.rank = Rank{1};
  config.world = core::WorldSize{2};
  config.buckets = 2;
  config.verdict_entry = {2};
  return config;
}

/// Brings a joined supervisor to the point where only the verdict is missing.
void run_backward(MachineProbe& probe, std::string refusal = {}, double loss_scale = 1) {
  probe.say(messages::Welcome{});
  probe.say(messages::StepBegan{Step{0}, 0.5, loss_scale});
  probe.say(messages::BucketReady{Step{0}, 0, refusal});
  probe.say(messages::BucketReady{Step{0}, 1, ""});
  probe.say(messages::BackwardFinished{Step{0}, {}, ""});
  probe.say(messages::BucketReduced{Step{0}, 0});
  probe.say(messages::BucketReduced{Step{0}, 1});
}

StepDecided decide(MachineProbe& probe, messages::Verdict verdict) {
  auto decided = sent<StepDecided>(probe.say(messages::VerdictArrived{Step{0}, std::move(verdict)}));
  EXPECT_EQ(decided.size(), 4u) << "the conductor, two shards and the trainer";
  return decided.empty() ? StepDecided{} : decided[0];
}

TEST(RankSupervisor, UpdatesFirstWhatForwardReadsFirst) {
  using Buckets = std::vector<core::BucketIndex>;
  const auto updated = [](Buckets forward, Buckets learned = {}) {
    auto config = two_buckets();
    config.forward = std::move(forward);
    RankSupervisorMachine machine(config);
    MachineProbe probe(machine);
    probe.say(messages::Welcome{});
    if (!learned.empty()) probe.say(messages::OrderLearned{{}, std::move(learned)});
    run_backward(probe);
    std::vector<std::uint32_t> shards;
    for (const auto& effect : probe.say(messages::VerdictArrived{Step{0}, {}})) {
      const auto* send = std::get_if<Send>(&effect);
      if (send != nullptr && send->to.role == messages::Role::parameter_shard)
        shards.push_back(send->to.index);
    }
    return shards;
  };

  EXPECT_EQ(updated({}), (std::vector<std::uint32_t>{1, 0}));
  EXPECT_EQ(updated({{0}, {1}}), (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(updated({{0}, {1}}, {{1}, {0}}), (std::vector<std::uint32_t>{1, 0}));
}

TEST(RankSupervisor, AsksForTheVerdictAfterBucketsAndTrainer) {
  RankSupervisorMachine machine(two_buckets());
  MachineProbe probe(machine);
  probe.say(messages::Welcome{});
  probe.say(messages::StepBegan{Step{0}, 0.5});
  probe.say(messages::BucketReady{Step{0}, 0, ""});

  auto trainer = probe.say(messages::BackwardFinished{Step{0}, {{core::Lane{0}, 1.5}}, ""});
  auto bucket = probe.say(messages::BucketReady{Step{0}, 1, ""});

  EXPECT_TRUE(trainer.empty());
  ASSERT_EQ(performed<PrepareVerdict>(bucket).size(), 1u);
  EXPECT_EQ(performed<PrepareVerdict>(bucket)[0].losses[0].loss, 1.5);
  EXPECT_EQ(sent<messages::CollectiveReady>(bucket), (std::vector<messages::CollectiveReady>{{Step{0}, 2}}));
}

TEST(RankSupervisor, DecidesOnlyWhenEveryBucketIsReduced) {
  RankSupervisorMachine machine(two_buckets());
  MachineProbe probe(machine);
  probe.say(messages::Welcome{});
  probe.say(messages::StepBegan{Step{0}, 0.5});
  probe.say(messages::BucketReady{Step{0}, 0, ""});
  probe.say(messages::BucketReady{Step{0}, 1, ""});
  probe.say(messages::BackwardFinished{Step{0}, {}, ""});
  probe.say(messages::BucketReduced{Step{0}, 1});

  auto verdict = probe.say(messages::VerdictArrived{Step{0}, {}});
  auto bucket = probe.say(messages::BucketReduced{Step{0}, 0});

  EXPECT_TRUE(verdict.empty());
  EXPECT_EQ(sent<StepDecided>(bucket).size(), 4u);
}

TEST(RankSupervisor, CommitsWhatIsFiniteAndNotRefused) {
  RankSupervisorMachine machine(two_buckets());
  MachineProbe probe(machine);
  run_backward(probe);

  auto decided = decide(probe, {.gradient_norm = 2.0});

  EXPECT_TRUE(decided.commit);
  EXPECT_EQ(decided.clip_factor, 1.0);
  EXPECT_EQ(decided.learning_rate, 0.5);
}

TEST(RankSupervisor, ClipsWhatIsAveragedOverWeights) {
  auto config = two_buckets();
  config.clip_norm = 1;
  RankSupervisorMachine machine(config);
  MachineProbe probe(machine);
  run_backward(probe, {}, 8);

  auto decided = decide(probe, {.gradient_norm = 32, .weight = 3, .gradient_factor = 0.5});

  EXPECT_TRUE(decided.commit);
  EXPECT_EQ(decided.verdict.gradient_norm, 2);
  EXPECT_EQ(decided.clip_factor, 1 / (2 + 1e-6));
  EXPECT_EQ(decided.verdict.gradient_factor, 0.5);
}

TEST(RankSupervisor, DoesNotCommitAStepWithoutAnAverage) {
  const auto reason_of = [](messages::Verdict verdict) {
    RankSupervisorMachine machine(two_buckets());
    MachineProbe probe(machine);
    run_backward(probe);
    auto decided = decide(probe, std::move(verdict));
    EXPECT_FALSE(decided.commit);
    return decided.reason;
  };

  EXPECT_EQ(reason_of({.weight = 0}), "no lane of the step has a target: their weights are all 0");
  EXPECT_THAT(reason_of({.weight = 1e-200, .gradient_factor = 1e200}), testing::HasSubstr("too little"));
  EXPECT_THAT(reason_of({.weight = 4, .unweighted_lanes = 3}),
              testing::HasSubstr("3 of the step's lanes ended without a weight"));
  EXPECT_EQ(reason_of({.nonfinite_gradients = 3, .weight = 0}), "3 gradient elements are NaN or Inf");
}

// Covers finish-16.
TEST(RankSupervisor, DoesNotCommitNonfiniteGradients) {
  RankSupervisorMachine machine(two_buckets());
  MachineProbe probe(machine);
  run_backward(probe);

  auto decided = decide(probe, {.gradient_norm = 2.0, .nonfinite_gradients = 3});

  EXPECT_FALSE(decided.commit);
  EXPECT_EQ(decided.reason, "3 gradient elements are NaN or Inf");
}

/// What all ranks are told about step 0, which the verdict says is not committed.
StepDecided decide_for(MachineProbe& probe, messages::Verdict verdict, const std::string& reason) {
  EXPECT_EQ(sent<messages::StepAccount>(probe.say(messages::VerdictArrived{Step{0}, verdict})).size(), 1u);
  const auto decided = sent<StepDecided>(probe.say(messages::StepReason{Step{0}, reason}));
  EXPECT_EQ(decided.size(), 4u) << "the conductor, two shards and the trainer";
  return decided.empty() ? StepDecided{} : decided[0];
}

TEST(RankSupervisor, ExplainsARefusalAndDecidesOnceAllAreTold) {
  RankSupervisorMachine machine(two_buckets());
  MachineProbe probe(machine);
  run_backward(probe, "parameter x gave 0 of 1 gradients");

  const auto verdict = probe.say(messages::VerdictArrived{Step{0}, {.gradient_norm = 2.0, .refusing = 1}});
  const auto other = probe.say(messages::StepReason{Step{1}, "of another step"});
  const auto decided = sent<StepDecided>(probe.say(messages::StepReason{Step{0}, "refused by rank 1: x"}));

  const auto accounts = sent<messages::StepAccount>(verdict);
  ASSERT_EQ(accounts.size(), 1u);
  EXPECT_EQ(accounts[0].rank, Rank{1});
  EXPECT_EQ(accounts[0].refusal, "parameter x gave 0 of 1 gradients");
  EXPECT_TRUE(sent<StepDecided>(verdict).empty());
  EXPECT_TRUE(other.empty());
  ASSERT_EQ(decided.size(), 4u);
  EXPECT_FALSE(decided[0].commit);
  EXPECT_EQ(decided[0].reason, "refused by rank 1: x");
}

TEST(RankSupervisor, AsksWhatDiffersThoughItRefusesNothing) {
  RankSupervisorMachine machine(two_buckets());
  MachineProbe probe(machine);
  run_backward(probe);

  const auto decided = decide_for(probe, {.differs = true}, "ranks differ in the rate");

  EXPECT_FALSE(decided.commit);
  EXPECT_EQ(decided.reason, "ranks differ in the rate");
}

TEST(RankSupervisor, ClipsByTheGlobalNorm) {
  auto config = two_buckets();
  config.clip_norm = 1.0;
  RankSupervisorMachine machine(config);
  MachineProbe probe(machine);
  run_backward(probe);

  auto decided = decide(probe, {.gradient_norm = 4.0});

  EXPECT_EQ(decided.clip_factor, 1.0 / (4.0 + 1e-6));
}

/// Gradients that are 8 times too large: what is left of them is clipped.
TEST(RankSupervisor, MeasuresAndClipsGradientsWithoutTheLossScale) {
  auto config = two_buckets();
  config.clip_norm = 1.0;
  RankSupervisorMachine machine(config);
  MachineProbe probe(machine);
  run_backward(probe, {}, 8);

  const auto decided = decide(probe, {.gradient_norm = 32.0});

  EXPECT_EQ(decided.verdict.gradient_norm, 4.0);
  EXPECT_EQ(decided.clip_factor, 1.0 / (4.0 + 1e-6));
  EXPECT_EQ(decided.loss_scale, 8);
}

/// One of two buckets is frozen: it is updated, in its way, and never reduced.
TEST(RankSupervisor, WaitsForNoGradientsOfFrozenBuckets) {
  auto config = two_buckets();
  config.frozen_buckets = 1;
  RankSupervisorMachine machine(config);
  MachineProbe probe(machine);
  probe.say(messages::Welcome{});
  probe.say(messages::StepBegan{Step{0}, 0.5});
  probe.say(messages::BackwardFinished{Step{0}, {}, ""});
  EXPECT_EQ(performed<PrepareVerdict>(probe.say(messages::BucketReady{Step{0}, 1, ""})).size(), 1u);
  probe.say(messages::BucketReduced{Step{0}, 1});

  decide(probe, {});

  EXPECT_TRUE(probe.say(messages::ShardUpdated{Step{0}, 0}).empty());
  EXPECT_EQ(sent<messages::StepCommitted>(probe.say(messages::ShardUpdated{Step{0}, 1})).size(), 1u);
}

TEST(RankSupervisor, SaysCommittedWhenAllShardsAreUpdated) {
  RankSupervisorMachine machine(two_buckets());
  MachineProbe probe(machine);
  run_backward(probe);
  decide(probe, {});

  auto first = probe.say(messages::ShardUpdated{Step{0}, 1});
  auto second = probe.say(messages::ShardUpdated{Step{0}, 0});

  EXPECT_TRUE(first.empty());
  EXPECT_EQ(sent<messages::StepCommitted>(second), (std::vector<messages::StepCommitted>{{Step{0}, true}}));
}

TEST(RankSupervisor, SaysCommittedAlsoWhenTheNextStepHasBegun) {
  RankSupervisorMachine machine(two_buckets());
  MachineProbe probe(machine);
  run_backward(probe);
  decide(probe, {});
  probe.say(messages::StepBegan{Step{1}, 0.5});

  probe.say(messages::ShardUpdated{Step{0}, 1});
  auto last = probe.say(messages::ShardUpdated{Step{0}, 0});

  EXPECT_EQ(sent<messages::StepCommitted>(last), (std::vector<messages::StepCommitted>{{Step{0}, true}}));
}

TEST(RankSupervisor, ReportsShardsThroughAlsoForARefusedStep) {
  RankSupervisorMachine machine(two_buckets());
  MachineProbe probe(machine);
  run_backward(probe);
  ASSERT_FALSE(decide_for(probe, {.refusing = 1}, "refused").commit);

  probe.say(messages::ShardUpdated{Step{0}, 1});
  auto last = probe.say(messages::ShardUpdated{Step{0}, 0});

  EXPECT_EQ(sent<messages::StepCommitted>(last), (std::vector<messages::StepCommitted>{{Step{0}, false}}));
}

TEST(RankSupervisor, AFencedRankDecidesNothing) {
  RankSupervisorMachine machine(two_buckets());
  MachineProbe probe(machine);
  run_backward(probe);

  auto fenced = probe.say(messages::Fence{Rank{0}, {true, core::Errc::peer_lost, "rank 0 died"}});
  auto verdict = probe.say(messages::VerdictArrived{Step{0}, {}});

  EXPECT_EQ(performed<AbortCollectives>(fenced).size(), 1u);
  ASSERT_EQ(sent<messages::StepFailed>(fenced).size(), 1u);
  EXPECT_EQ(sent<messages::StepFailed>(fenced)[0].failure.message, "rank 0 died");
  EXPECT_TRUE(verdict.empty());
}

TEST(RankSupervisor, TellsTheCoordinatorOfAFailedCollective) {
  RankSupervisorMachine machine(two_buckets());
  MachineProbe probe(machine);
  run_backward(probe);

  auto failed = probe.say(messages::CollectiveFailed{Step{0}, 1, 4, {true, core::Errc::timeout, "late"}});

  EXPECT_EQ(sent<messages::RankFailed>(failed).size(), 1u);
  EXPECT_EQ(performed<AbortCollectives>(failed).size(), 1u);
  EXPECT_EQ(machine.state(), "fenced");
}

/// A supervisor whose collective has just failed.
void fail_collective(MachineProbe& probe) {
  run_backward(probe);
  auto failed = probe.say(messages::CollectiveFailed{Step{0}, 1, 4, {true, core::Errc::timeout, "late"}});
  EXPECT_TRUE(sent<messages::StepFailed>(failed).empty()) << "the trainer hears from the coordinator";
}

TEST(RankSupervisor, TellsItsTrainerTheCoordinatorsFirstCulprit) {
  RankSupervisorMachine machine(two_buckets());
  MachineProbe probe(machine);
  fail_collective(probe);

  auto told = probe.say(messages::Fence{Rank{2}, {true, core::Errc::peer_lost, "rank 2 died"}});
  auto again = probe.timer(1);

  ASSERT_EQ(sent<messages::StepFailed>(told).size(), 1u);
  EXPECT_EQ(sent<messages::StepFailed>(told)[0].failure.message, "rank 2 died");
  EXPECT_TRUE(again.empty()) << "once";
}

TEST(RankSupervisor, TellsItsTrainerItsOwnErrorWithoutACoordinator) {
  for (bool is_lost : {false, true}) {
    RankSupervisorMachine machine(two_buckets());
    MachineProbe probe(machine);
    fail_collective(probe);

    auto told = is_lost ? probe.say(messages::PeerLost{Rank{0}, {true, core::Errc::peer_lost, "closed"}})
                        : probe.timer(1);

    ASSERT_EQ(sent<messages::StepFailed>(told).size(), 1u);
    EXPECT_EQ(sent<messages::StepFailed>(told)[0].failure.message, "late");
  }
}

TEST(RankSupervisor, GivesUpJoiningAfterItsDeadline) {
  RankSupervisorMachine machine(two_buckets());
  MachineProbe probe(machine);
  auto started = probe.start();

  auto late = probe.timer(0);

  EXPECT_EQ(sent<messages::Join>(started).size(), 1u);
  ASSERT_EQ(sent<messages::StepFailed>(late).size(), 1u);
  EXPECT_EQ(sent<messages::StepFailed>(late)[0].failure.code, core::Errc::timeout);
}

TEST(RankSupervisor, TheCoordinatorsEndBeforeItsFarewellIsAFailure) {
  RankSupervisorMachine machine(two_buckets());
  MachineProbe probe(machine);
  probe.say(messages::Welcome{});
  probe.say(messages::Leave{Rank{1}});

  auto lost = probe.say(messages::PeerLost{Rank{0}, {true, core::Errc::peer_lost, "closed"}});

  ASSERT_EQ(sent<messages::StepFailed>(lost).size(), 1u);
  EXPECT_EQ(machine.state(), "fenced");
}

}  // namespace
}  // namespace troupe::actors
