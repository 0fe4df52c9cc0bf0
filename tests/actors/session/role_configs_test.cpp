#include "actors/session/role_configs.hpp"

#include <gtest/gtest.h>

#include <set>

#include "core/indices.hpp"

namespace troupe::actors {
namespace {

TrainingPlan job_of(core::Strategy strategy, core::Numerics numerics, int ranks, int instances = 1) {
  core::TrainingOptions options;
  options.strategy = strategy;
  options.numerics = numerics;
  options.lanes = 8;
  options.optimizer_instances = instances;
  options.bucket_elements = 100;
  return plan_training({{"a", {90}}, {"b", {90}}, {"c", {90}}}, options, {ranks}).value();
}

std::vector<TrainingPlan> all_jobs() {
  std::vector<TrainingPlan> jobs;
  for (auto numerics : {core::Numerics::fast, core::Numerics::ordered}) {
    for (int ranks : {1, 3, 4}) {
      jobs.push_back(job_of(core::Strategy::ddp, numerics, ranks));
      jobs.push_back(job_of(core::Strategy::zero1, numerics, ranks));
    }
    jobs.push_back(job_of(core::Strategy::zero1, numerics, 4, 2));
  }
  return jobs;
}

TEST(RoleConfigs, EveryEntryOfThePlanHasExactlyTheOwnerThatTheConductorAnswers) {
  for (const auto& plan : all_jobs()) {
    auto conductor = conductor_config(plan, {0}, std::chrono::seconds(1));
    ASSERT_EQ(conductor.entries.size(), plan.step.entries.size());
    std::set<core::PlanEntryIndex> owned = {supervisor_config(plan, {0}, {}).verdict_entry};
    for (const auto bucket : core::indices<core::BucketIndex>(plan.buckets.size())) {
      for (auto entry : bucket_config(plan, {0}, bucket).entries) {
        EXPECT_TRUE(owned.insert(entry).second);
        EXPECT_EQ(conductor.entries[core::place_of(entry)].owner,
                  (messages::Address{{0}, messages::Role::gradient_bucket, bucket.value}));
        EXPECT_FALSE(conductor.entries[core::place_of(entry)].only_if_committed);
      }
      if (auto gather = shard_config(plan, {0}, bucket).gather_entry) {
        EXPECT_TRUE(owned.insert(*gather).second);
        EXPECT_EQ(conductor.entries[core::place_of(*gather)].owner,
                  (messages::Address{{0}, messages::Role::parameter_shard, bucket.value}));
        EXPECT_TRUE(conductor.entries[core::place_of(*gather)].only_if_committed);
      }
    }
    EXPECT_EQ(owned.size(), plan.step.entries.size()) << "somebody declares each entry ready";
  }
}

TEST(RoleConfigs, AllRanksOfAJobJoinWithTheSamePlan) {
  for (const auto& plan : all_jobs()) {
    auto first = supervisor_config(plan, {0}, {});
    auto last = supervisor_config(plan, {plan.world.value - 1}, {});

    EXPECT_EQ(first.plan_hash, last.plan_hash);
    EXPECT_EQ(first.plan_lines, last.plan_lines);
    EXPECT_EQ(first.configuration, last.configuration);
  }
}

TEST(RoleConfigs, ABucketKnowsTheLanesItsRankPlays) {
  auto plan = job_of(core::Strategy::zero1, core::Numerics::ordered, 3);

  EXPECT_EQ(bucket_config(plan, {0}, {0}).lanes, (std::vector<core::Lane>{{0}, {1}, {2}}));
  EXPECT_EQ(bucket_config(plan, {2}, {0}).lanes, (std::vector<core::Lane>{{6}, {7}}));
}

}  // namespace
}  // namespace troupe::actors
