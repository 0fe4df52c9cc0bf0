#include "actors/roles/conductor.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/actors/support/machine_probe.hpp"

namespace troupe::actors {
namespace {

using core::Step;
using messages::CollectiveDone;
using messages::CollectiveReady;
using messages::StepBegan;

/// Two reductions, a verdict and two gathers.
ConductorConfig five_entries() {
  ConductorConfig config;
  for (std::uint32_t i = 0; i < 5; ++i) {
    config.entries.push_back(
        {"entry " + std::to_string(i), {{}, messages::Role::gradient_bucket, i}, i >= 3});
  }
  return config;
}

std::vector<std::int32_t> launched(const std::vector<Effect>& effects) {
  std::vector<std::int32_t> entries;
  for (const auto& launch : performed<LaunchCollective>(effects)) entries.push_back(launch.entry.value);
  return entries;
}

TEST(Conductor, HoldsBackWhatIsReadyOutOfTurn) {
  ConductorMachine machine(five_entries());
  MachineProbe probe(machine);
  probe.say(StepBegan{Step{0}});

  auto second = probe.say(CollectiveReady{Step{0}, 1});
  auto first = probe.say(CollectiveReady{Step{0}, 0});

  EXPECT_TRUE(second.empty());
  EXPECT_EQ(launched(first), (std::vector<std::int32_t>{0, 1}));
}

TEST(Conductor, FollowsAnOrderLearnedBeforeTheFirstStep) {
  auto config = five_entries();
  config.entries[4].stream = 1;
  ConductorMachine machine(config);
  MachineProbe probe(machine);
  const auto order = [](std::vector<std::int32_t> entries) {
    messages::OrderLearned learned;
    for (const auto entry : entries) learned.launches.push_back({entry});
    return learned;
  };
  probe.say(order({1, 4, 0, 2, 3}));
  probe.say(StepBegan{Step{0}});
  probe.say(order({0, 1, 2, 3, 4}));  // too late

  EXPECT_EQ(launched(probe.say(CollectiveReady{Step{0}, 0})), (std::vector<std::int32_t>{}));
  EXPECT_EQ(launched(probe.say(CollectiveReady{Step{0}, 1})), (std::vector<std::int32_t>{1, 0}));
  EXPECT_EQ(launched(probe.say(CollectiveReady{Step{0}, 4})), (std::vector<std::int32_t>{4}));
  EXPECT_EQ(launched(probe.say(CollectiveReady{Step{0}, 3})), (std::vector<std::int32_t>{}));
  EXPECT_EQ(launched(probe.say(CollectiveReady{Step{0}, 2})), (std::vector<std::int32_t>{2, 3}));
  EXPECT_EQ(launched(probe.say(CollectiveReady{Step{1}, 0})), (std::vector<std::int32_t>{}));
  EXPECT_EQ(launched(probe.say(CollectiveReady{Step{1}, 1})), (std::vector<std::int32_t>{1, 0}));
}

TEST(Conductor, LetsNoStreamWaitForAnother) {
  auto config = five_entries();
  for (const std::size_t entry : {1, 4}) config.entries[entry].stream = 1;
  ConductorMachine machine(config);
  MachineProbe probe(machine);
  probe.say(StepBegan{Step{0}});

  EXPECT_EQ(launched(probe.say(CollectiveReady{Step{0}, 2})), (std::vector<std::int32_t>{}));
  EXPECT_EQ(launched(probe.say(CollectiveReady{Step{0}, 1})), (std::vector<std::int32_t>{1}));
  EXPECT_EQ(launched(probe.say(CollectiveReady{Step{0}, 4})), (std::vector<std::int32_t>{4}));
  EXPECT_EQ(launched(probe.say(CollectiveReady{Step{1}, 1})), (std::vector<std::int32_t>{1}))
      << "this stream is in the next step";
  EXPECT_EQ(launched(probe.say(CollectiveReady{Step{0}, 0})), (std::vector<std::int32_t>{0, 2}));
}

TEST(Conductor, AcceptsReadinessBeforeItKnowsTheFirstStep) {
  ConductorMachine machine(five_entries());
  MachineProbe probe(machine);

  auto early = probe.say(CollectiveReady{Step{5}, 0});
  auto begun = probe.say(StepBegan{Step{5}});

  EXPECT_TRUE(early.empty());
  EXPECT_EQ(launched(begun), (std::vector<std::int32_t>{0}));
}

TEST(Conductor, SkipsGathersOfAnUncommittedStep) {
  ConductorMachine machine(five_entries());
  MachineProbe probe(machine);
  probe.say(StepBegan{Step{0}});
  for (std::int32_t i = 0; i < 3; ++i) probe.say(CollectiveReady{Step{0}, {i}});

  messages::StepDecided refused;
  refused.step = Step{0};
  probe.say(refused);
  auto next = probe.say(CollectiveReady{Step{1}, 0});

  EXPECT_EQ(launched(next), (std::vector<std::int32_t>{0}));
  EXPECT_NE(machine.waiting_for().find("entry 1 of step 1"), std::string::npos) << machine.waiting_for();
}

TEST(Conductor, TellsTheOwnerWhenTheDeviceIsThrough) {
  ConductorMachine machine(five_entries());
  MachineProbe probe(machine);
  probe.say(StepBegan{Step{0}});
  probe.say(CollectiveReady{Step{0}, 0});

  auto done = probe.say(CollectiveDone{Step{0}, 0, 0, {}});
  auto again = probe.say(CollectiveDone{Step{0}, 0, 0, {}});

  EXPECT_EQ(sent<CollectiveDone>(done).size(), 1u);
  EXPECT_TRUE(again.empty());
}

TEST(Conductor, LaunchesNothingAfterAFailure) {
  ConductorMachine machine(five_entries());
  MachineProbe probe(machine);
  probe.say(StepBegan{Step{0}});
  probe.say(CollectiveReady{Step{0}, 0});

  auto failed = probe.say(CollectiveDone{Step{0}, 0, 0, {true, core::Errc::peer_lost, "rank 2 died"}});
  auto later = probe.say(CollectiveReady{Step{0}, 1});

  ASSERT_EQ(sent<messages::CollectiveFailed>(failed).size(), 1u);
  EXPECT_EQ(sent<messages::CollectiveFailed>(failed)[0].failure.message,
            "entry 0 of step 0 (launch 0): rank 2 died");
  EXPECT_TRUE(later.empty());
  EXPECT_EQ(machine.state(), "aborting");
}

TEST(Conductor, CallsALaunchHungThatOutlivesItsDeadline) {
  ConductorMachine machine(five_entries());
  MachineProbe probe(machine);
  probe.say(StepBegan{Step{0}});
  probe.say(CollectiveReady{Step{0}, 0});
  probe.say(CollectiveDone{Step{0}, 0, 0, {}});
  probe.say(CollectiveReady{Step{0}, 1});

  auto first = probe.timer(0);
  auto second = probe.timer(0);

  EXPECT_TRUE(sent<messages::CollectiveFailed>(first).empty()) << "entry 1 is younger than the deadline";
  ASSERT_EQ(sent<messages::CollectiveFailed>(second).size(), 1u);
  EXPECT_EQ(sent<messages::CollectiveFailed>(second)[0].failure.code, core::Errc::timeout);
}

RC_GTEST_PROP(Conductor, LaunchesInPlanOrderWhateverTheOrderOfReadiness, ()) {
  ConductorMachine machine(five_entries());
  MachineProbe probe(machine);
  probe.say(StepBegan{Step{0}});
  std::vector<std::int32_t> order(5);
  std::iota(order.begin(), order.end(), 0);
  std::vector<std::int32_t> all;

  for (int step = 0; step < 3; ++step) {
    for (std::size_t i = order.size(); i > 1; --i)
      std::swap(order[i - 1], order[*rc::gen::inRange<std::size_t>(0, i)]);
    for (auto entry : order) {
      for (auto launch : launched(probe.say(CollectiveReady{Step{step}, {entry}}))) all.push_back(launch);
    }
  }

  RC_ASSERT(all == (std::vector<std::int32_t>{0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4}));
}

}  // namespace
}  // namespace troupe::actors
