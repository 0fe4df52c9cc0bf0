#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "actors/planes/step/state.hpp"
#include "core/indices.hpp"
#include "tests/actors/planes/step/planes.hpp"

namespace troupe::actors {
namespace {

TrainingPlan plan_for(int ranks, core::Strategy strategy) {
  core::TrainingOptions options;
  options.lanes = 12;
  options.strategy = strategy;
  options.bucket_elements = 500;
  std::vector<core::ParameterSpec> parameters{
      {"weight", {30, 17}}, {"bias", {31}}, {"narrow", {100}, core::DType::bf16}};
  parameters.push_back({"frozen", {77}});
  parameters.back().trainable = false;
  return plan_training(std::move(parameters), options, {ranks}).value();
}

/// Where parameters and the optimizer's state are.
std::vector<std::byte*> places_in(DataPlane& plane, const TrainingPlan& plan) {
  std::vector<std::byte*> found;
  for (const auto p : plan.specs.indices()) found.push_back(plane.tensors().resting_parameter(p).memory.data);
  for (const auto bucket : plan.buckets.indices()) {
    for (const auto kind : {StateKind::master, StateKind::first_state, StateKind::second_state}) {
      if (plan.is_trainable(bucket)) found.push_back(plane.tensors().state(kind, bucket).data);
    }
  }
  return found;
}

TEST(Rest, OfReplicatedStateGoesOverToFewerRanks) {
  Planes before(plan_for(4, core::Strategy::ddp));
  for (const int ranks : {1, 2, 3, 4, 6}) {
    Planes after(plan_for(ranks, core::Strategy::ddp));
    const auto taken = places_in(before[1], before.plan), given = places_in(after[0], after.plan);
    ASSERT_TRUE(after[0].rests_like(before[1])) << ranks;

    EXPECT_TRUE(after[0].take_memory(before[1]));

    EXPECT_EQ(places_in(after[0], after.plan), taken) << ranks;
    EXPECT_EQ(places_in(before[1], before.plan), given) << ranks;
    EXPECT_TRUE(before[1].take_memory(after[0]));
  }
}

TEST(Rest, StaysWhereShardsDependOnTheRanks) {
  Planes before(plan_for(4, core::Strategy::zero1)), after(plan_for(3, core::Strategy::zero1));

  EXPECT_FALSE(after[0].rests_like(before[1]));
  EXPECT_FALSE(after[0].take_memory(before[1]));
}

}  // namespace
}  // namespace troupe::actors
