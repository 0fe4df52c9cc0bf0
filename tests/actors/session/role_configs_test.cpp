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

TEST(RoleConfigs, EveryPlanEntryHasTheOwnerTheConductorAnswers) {
  for (const auto& plan : all_jobs()) {
    const RankProgram program(plan, {0});
    auto conductor = conductor_config(plan, program, std::chrono::seconds(1));
    ASSERT_EQ(conductor.entries.size(), program.launches().size());
    std::set<core::PlanEntryIndex> owned = {supervisor_config(plan, program, {}).verdict_entry};
    for (const auto bucket : plan.buckets.indices()) {
      const auto reductions = bucket_config(plan, program, bucket).rounds.back().entries;
      for (const auto entry : reductions) {
        EXPECT_TRUE(owned.insert(entry).second);
        EXPECT_EQ(conductor.entries[core::place_of(entry)].owner,
                  (messages::Address{{0}, messages::Role::gradient_bucket, bucket.value}));
        EXPECT_FALSE(conductor.entries[core::place_of(entry)].only_if_committed);
      }
      for (const auto gather : shard_config(plan, program, bucket).gather_entries) {
        EXPECT_TRUE(owned.insert(gather).second);
        EXPECT_EQ(conductor.entries[core::place_of(gather)].owner,
                  (messages::Address{{0}, messages::Role::parameter_shard, bucket.value}));
        EXPECT_TRUE(conductor.entries[core::place_of(gather)].only_if_committed);
      }
    }
    EXPECT_EQ(owned.size(), program.launches().size()) << "somebody declares each entry ready";
  }
}

TEST(RoleConfigs, AllRanksJoinWithTheSamePlan) {
  for (const auto& plan : all_jobs()) {
    auto first = supervisor_config(plan, RankProgram(plan, {0}), {});
    auto last = supervisor_config(plan, RankProgram(plan, {plan.world.value - 1}), {});

    EXPECT_EQ(first.plan_hash, last.plan_hash);
    EXPECT_EQ(*first.plan_lines, *last.plan_lines);
    EXPECT_EQ(first.configuration, last.configuration);
  }
}

TEST(RoleConfigs, ABucketKnowsTheLanesItsRankPlays) {
  auto plan = job_of(core::Strategy::zero1, core::Numerics::ordered, 3);

  const auto lanes = [&](int rank) {
    std::vector<int> found;
    for (const auto& round : bucket_config(plan, RankProgram(plan, {rank}), {0}).rounds)
      found.push_back(round.lane.value);
    return found;
  };
  EXPECT_EQ(lanes(0), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(lanes(2), (std::vector<int>{6, 7}));
}

}  // namespace
}  // namespace troupe::actors
