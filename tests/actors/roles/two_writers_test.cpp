#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/roles/parameter_shard.hpp"
#include "tests/actors/support/machine_probe.hpp"

namespace troupe::actors {
namespace {

using messages::Role;
using testing::IsEmpty;
using testing::SizeIs;

constexpr core::Rank kRank{1};
constexpr messages::Address kTrainer{kRank, Role::trainer, 0};
constexpr messages::Address kCheckpoint{kRank, Role::checkpoint_writer, 0};
constexpr messages::Address kLocal{kRank, Role::local_writer, 0};

messages::StepDecided decided(std::int64_t step) {
  messages::StepDecided message;
  message.step = {step};
  message.commit = true;
  return message;
}

std::vector<Role> told(const std::vector<Effect>& effects) {
  std::vector<Role> roles;
  for (const auto& effect : effects) {
    const auto* send = std::get_if<Send>(&effect);
    if (send && std::holds_alternative<messages::BucketHeld>(send->body)) roles.push_back(send->to.role);
  }
  return roles;
}

TEST(ShardOfTwoWriters, HoldsTheBucketForEachAndUpdatesAfterBoth) {
  ParameterShardMachine machine({kRank, 4, {}});
  MachineProbe probe(machine);
  probe.say(decided(0));
  probe.say(messages::ShardStepped{{0}, 4});
  const messages::SaveBegan begun{1, {0}, "", "", ""};

  EXPECT_THAT(told(probe.say(begun, kTrainer)), testing::ElementsAre(Role::checkpoint_writer));
  EXPECT_THAT(told(probe.say(begun, kLocal)), testing::ElementsAre(Role::local_writer));
  EXPECT_THAT(performed<StepShard>(probe.say(decided(1))), IsEmpty());
  EXPECT_THAT(performed<StepShard>(probe.say(messages::BucketStaged{1}, kLocal)), IsEmpty());
  EXPECT_THAT(performed<StepShard>(probe.say(messages::BucketStaged{1}, kLocal)), IsEmpty());

  EXPECT_THAT(performed<StepShard>(probe.say(messages::BucketStaged{1}, kCheckpoint)), SizeIs(1));
}

}  // namespace
}  // namespace troupe::actors
