#include "actors/parameter_shard/machine.hpp"

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

TEST(ParameterShard, PublishesOnlyAfterTheUpdateAndTheGather) {
  ParameterShardMachine machine({.rank = {}, .bucket = 1, .gather_entry = 9});
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

TEST(ParameterShard, PublishesOnceWhenTheGatherIsToldBeforeTheUpdate) {
  ParameterShardMachine machine({.rank = {}, .bucket = 1, .gather_entry = 9});
  MachineProbe probe(machine);
  probe.say(decided(Step{0}, true));

  auto gathered = probe.say(CollectiveDone{Step{0}, 9, 0, {}});
  auto stepped = probe.say(ShardStepped{Step{0}, 1});

  EXPECT_TRUE(sent<Published>(gathered).empty());
  EXPECT_EQ(sent<Published>(stepped).size(), 1u);
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
  ParameterShardMachine machine({.rank = {}, .bucket = 0, .gather_entry = 9});
  MachineProbe probe(machine);

  auto update = probe.say(decided(Step{0}, false));
  auto stepped = probe.say(ShardStepped{Step{0}, 0});

  ASSERT_EQ(performed<StepShard>(update).size(), 1u);
  EXPECT_FALSE(performed<StepShard>(update)[0].commit);
  EXPECT_TRUE(sent<messages::CollectiveReady>(update).empty());
  EXPECT_EQ(sent<Published>(stepped).size(), 1u);
}

TEST(ParameterShard, AppliesADecisionOnce) {
  ParameterShardMachine machine({});
  MachineProbe probe(machine);
  probe.say(decided(Step{3}, true));

  auto again = probe.say(decided(Step{3}, true));
  auto older = probe.say(decided(Step{2}, true));

  EXPECT_TRUE(again.empty());
  EXPECT_TRUE(older.empty());
}

}  // namespace
}  // namespace troupe::actors
