#include "actors/roles/coordinator.hpp"

#include <fmt/format.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/roles/rank_supervisor.hpp"
#include "messages/border.hpp"
#include "messages/codec.hpp"
#include "tests/actors/support/machine_probe.hpp"

namespace troupe::actors {
namespace {

using core::Rank;
using core::WorldSize;
using messages::Join;
using ::testing::HasSubstr;

TEST(Coordinator, WelcomesEverybodyAtOnceWhenTheLastHasJoined) {
  CoordinatorMachine machine({WorldSize{2}});
  MachineProbe probe(machine);

  auto first = probe.say(Join{Rank{1}, WorldSize{2}, 5, "a"});
  auto second = probe.say(Join{Rank{0}, WorldSize{2}, 5, "a"});

  EXPECT_TRUE(first.empty());
  ASSERT_EQ(sent<messages::Welcome>(second).size(), 2u);
  EXPECT_EQ(sent<messages::Welcome>(second)[0].members, (std::vector<Rank>{{0}, {1}}));
}

TEST(Coordinator, TellsAllOfARankThatCannotTakePart) {
  CoordinatorMachine machine({WorldSize{3}});
  MachineProbe probe(machine);
  const messages::Failure failure{true, core::Errc::out_of_memory, "rank 1 needs 384.0 MiB"};

  probe.say(Join{Rank{0}, WorldSize{3}, 5, "a"});
  EXPECT_TRUE(probe.say(messages::RankFailed{Rank{1}, failure}).empty());
  EXPECT_TRUE(probe.say(Join{Rank{1}, WorldSize{3}, 5, "a"}).empty());
  const auto last = probe.say(Join{Rank{2}, WorldSize{3}, 5, "a"});

  EXPECT_TRUE(sent<messages::Welcome>(last).empty());
  const auto refused = sent<messages::Refused>(last);
  ASSERT_EQ(refused.size(), 3u);
  for (const auto& each : refused) EXPECT_EQ(each.failure.message, failure.message);
}

using Plan = std::vector<std::string>;

/// What a job of two ranks with these plans is told; every message between them is one that can travel.
std::string refusal_of(const Plan& ours, const Plan& theirs) {
  CoordinatorMachine machine({WorldSize{2}});
  MachineProbe probe(machine);
  std::vector<RankSupervisorMachine> supervisors;
  for (int rank : {0, 1}) {
    RankSupervisorConfig config;
    config.rank = {rank};
    config.world = {2};
    config.plan_hash = static_cast<std::uint64_t>(rank);
    config.plan_lines = std::make_shared<const Plan>(rank == 0 ? ours : theirs);
    supervisors.emplace_back(std::move(config));
  }
  probe.say(Join{Rank{0}, WorldSize{2}, 0, "a"});
  auto effects = probe.say(Join{Rank{1}, WorldSize{2}, 1, "a"});
  for (int round = 0; round < 8; ++round) {
    if (auto refused = sent<messages::Refused>(effects); !refused.empty()) return refused[0].failure.message;
    std::vector<Effect> answers;
    for (const auto& effect : effects) {
      const auto& question = std::get<Send>(effect);
      MachineProbe supervisor(supervisors[static_cast<std::size_t>(question.to.rank.value)]);
      for (auto& answer : supervisor.say(question.body)) answers.push_back(std::move(answer));
    }
    effects.clear();
    for (auto& answer : answers) {
      auto& body = std::get<Send>(answer).body;
      EXPECT_LT(messages::outgoing({{}, {}, {}, body}).size(), messages::kMaxEncodedBytes);
      for (auto& effect : probe.say(std::move(body))) effects.push_back(std::move(effect));
    }
  }
  return "nothing";
}

Plan plan_of(int lines) {
  Plan plan;
  for (int i = 0; i < lines; ++i) plan.push_back(fmt::format("line {}", i));
  return plan;
}

TEST(Coordinator, NamesTheFirstEntryInWhichTwoPlansDiffer) {
  EXPECT_EQ(refusal_of({"same", "ours", "ours"}, {"same", "theirs", "theirs"}),
            "rank 1 plans another step than rank 0; the first difference is entry 1: rank 0 has \"ours\", "
            "the other has \"theirs\"");
}

TEST(Coordinator, FindsTheFirstDifferenceOfOversizedPlans) {
  const auto ours = plan_of(200'000);
  // At the borders of blocks and between them, with another difference behind it.
  for (std::size_t place : {0, 1, 255, 256, 65535, 65536, 65537, 131071, 131072, 199'998}) {
    auto theirs = ours;
    theirs[place] = "another";
    theirs.back() = "another";

    EXPECT_THAT(
        refusal_of(ours, theirs),
        HasSubstr(fmt::format("entry {0}: rank 0 has \"line {0}\", the other has \"another\"", place)));
  }
}

TEST(Coordinator, FindsWhereOnePlanEndsBeforeTheOther) {
  const auto plan = plan_of(70'000);
  for (std::size_t lines : {0, 1, 256, 65535, 65536, 65537, 69'999}) {
    const Plan shorter(plan.begin(), plan.begin() + static_cast<std::ptrdiff_t>(lines));

    EXPECT_THAT(
        refusal_of(plan, shorter),
        HasSubstr(fmt::format("entry {0}: rank 0 has \"line {0}\", the other has \"nothing more\"", lines)));
    EXPECT_THAT(
        refusal_of(shorter, plan),
        HasSubstr(fmt::format("entry {0}: rank 0 has \"nothing more\", the other has \"line {0}\"", lines)));
  }
}

TEST(Coordinator, SeesTheDifferenceBehindTheCutOfLongLines) {
  Plan ours(300, std::string(20'000, 'x'));
  auto theirs = ours;
  theirs[299].back() = 'y';

  const auto refusal = refusal_of(ours, theirs);

  EXPECT_THAT(refusal, HasSubstr("the first difference is entry 299: rank 0 has \"xxx"));
  EXPECT_THAT(refusal, HasSubstr("... (20000 bytes with the hash "));
}

TEST(Coordinator, TakesNoPlanFromUnaskedRanks) {
  CoordinatorMachine machine({WorldSize{3}});
  MachineProbe probe(machine);
  for (int rank : {0, 1, 2}) probe.say(Join{Rank{rank}, WorldSize{3}, rank == 1 ? 6U : 5U, "a"});
  const auto wanted = messages::PlanHashes{Rank{0}, 0, 1 << 24, {1}};

  auto first = probe.say(wanted);
  auto from_another = probe.say(messages::PlanHashes{Rank{2}, 0, 1 << 24, {2}});
  auto of_another_part = probe.say(messages::PlanHashes{Rank{1}, 256, 1 << 16, {2}});
  auto second = probe.say(messages::PlanHashes{Rank{1}, 0, 1 << 24, {2}});

  EXPECT_TRUE(first.empty());
  EXPECT_TRUE(from_another.empty());
  EXPECT_TRUE(of_another_part.empty());
  EXPECT_EQ(sent<messages::PlanPartWanted>(second),
            (std::vector<messages::PlanPartWanted>{{0, 1 << 16}, {0, 1 << 16}}));
}

TEST(Coordinator, RefusesOtherSettings) {
  CoordinatorMachine machine({WorldSize{2}});
  MachineProbe probe(machine);
  probe.say(Join{Rank{0}, WorldSize{2}, 5, "lanes 8"});

  auto refused = probe.say(Join{Rank{1}, WorldSize{2}, 5, "lanes 4"});

  ASSERT_EQ(sent<messages::Refused>(refused).size(), 2u);
  EXPECT_EQ(sent<messages::Refused>(refused)[0].failure.code, core::Errc::mismatch);
  EXPECT_EQ(sent<messages::Refused>(refused)[0].failure.message,
            "rank 1 runs with other settings than rank 0: rank 0 has \"lanes 8\", rank 1 has \"lanes 4\"; "
            "start all "
            "ranks alike");
}

/// The coordinator of these ranks, after all have joined.
class Running : public testing::Test {
 protected:
  explicit Running(int ranks = 2) : machine({WorldSize{ranks}}), probe(machine) {
    for (int rank = 0; rank < ranks; ++rank) probe.say(Join{Rank{rank}, WorldSize{ranks}, 5, "a"});
  }

  CoordinatorMachine machine;
  MachineProbe probe;
};
using RunningCoordinator = Running;

TEST_F(RunningCoordinator, ExplainsARefusedStepOnceItHasEveryAccount) {
  const auto first = probe.say(messages::StepAccount{Rank{1}, {4}, "no data", {"rate: 1"}, {5}});
  const auto second = probe.say(messages::StepAccount{Rank{0}, {4}, "", {"rate: 1"}, {5}});

  EXPECT_TRUE(first.empty());
  EXPECT_EQ(sent<messages::StepReason>(second),
            (std::vector<messages::StepReason>(2, {{4}, "refused by rank 1: no data"})));
}

TEST_F(RunningCoordinator, EndsTheJobWhenOneRankCallsAlone) {
  probe.say(messages::StepAccount{Rank{1}, {4}, "", {"rate: 1"}, {5, 1}});
  const auto fenced =
      sent<messages::Fence>(probe.say(messages::StepAccount{Rank{0}, {4}, "", {"rate: 1"}, {5, 0}}));

  ASSERT_EQ(fenced.size(), 2u);
  EXPECT_EQ(fenced[0].failure.code, core::Errc::mismatch);
  EXPECT_EQ(
      fenced[0].failure.message,
      "ranks have not called save() alike: 0 times on rank 0, once on rank 1; all ranks make the same calls "
      "between the same steps");
}

TEST_F(RunningCoordinator, EndsTheJobWhenRanksAwaitDifferentCalls) {
  using messages::Call;
  const auto first = probe.say(messages::TrainerCalls{Rank{1}, {3, 0, 0, 0, 0, 1}, true, Call::leave, 1});
  const auto fenced = sent<messages::Fence>(
      probe.say(messages::TrainerCalls{Rank{0}, {4, 0, 0, 0, 0, 0}, true, Call::begin_step, 4}));

  EXPECT_TRUE(sent<messages::Fence>(first).empty());
  ASSERT_EQ(fenced.size(), 2u);
  EXPECT_EQ(
      fenced[0].failure.message,
      "the ranks wait for each other in different calls: rank 0 waits in begin_step() for rank 1 to call it, "
      "rank 1 waits in leave() for rank 0 to call it; all ranks make the same calls in the same order");
}

/// A rank that is said to be waiting may have gone on since; that of the others is what they wait for.
TEST_F(RunningCoordinator, LetsRanksWaitForOneOnItsWay) {
  using messages::Call;
  probe.say(messages::TrainerCalls{Rank{1}, {4}, true, Call::begin_step, 4});
  const auto waits = probe.say(messages::TrainerCalls{Rank{0}, {4}, true, Call::begin_step, 4});

  EXPECT_TRUE(waits.empty()) << "both have begun the step, and wait for its collectives";
}

TEST_F(RunningCoordinator, SaysOnceWhoWaitsForWhom) {
  using messages::Call;
  const auto waits = probe.say(messages::TrainerCalls{Rank{1}, {3, 0, 0, 0, 0, 1}, true, Call::leave, 1});
  const auto notes = sent<messages::WaitNote>(probe.timer(1));

  EXPECT_EQ(waits.size(), 1u) << "a timer";
  EXPECT_EQ(notes, (std::vector<messages::WaitNote>(2, {"rank 1 waits in leave() for rank 0 to call it"})));
  EXPECT_TRUE(probe.timer(1).empty());
}

TEST(Coordinator, TellsEverybodyTheFirstCulpritOnce) {
  CoordinatorMachine machine({WorldSize{2}});
  MachineProbe probe(machine);
  probe.say(Join{Rank{0}, WorldSize{2}, 5, "a"});
  probe.say(Join{Rank{1}, WorldSize{2}, 5, "a"});

  auto first = probe.say(messages::PeerLost{Rank{1}, {true, core::Errc::peer_lost, "connection closed"}});
  auto second = probe.say(messages::RankFailed{Rank{0}, {true, core::Errc::aborted, "secondary"}});

  ASSERT_EQ(sent<messages::Fence>(first).size(), 2u);
  EXPECT_EQ(sent<messages::Fence>(first)[0].culprit, Rank{1});
  EXPECT_TRUE(second.empty());
}

messages::RankFailed late(int rank, std::string sentence, std::vector<Rank> missing = {}) {
  return {Rank{rank}, {true, core::Errc::timeout, std::move(sentence), std::move(missing)}};
}

/// What the members are told after these deadlines, in this order, and the time of hearing; empty before
/// that.
std::string verdict_on(const std::vector<messages::RankFailed>& deadlines) {
  CoordinatorMachine machine({WorldSize{4}});
  MachineProbe probe(machine);
  for (int rank = 0; rank < 4; ++rank) probe.say(Join{Rank{rank}, WorldSize{4}, 5, "a"});
  for (const auto& deadline : deadlines) EXPECT_TRUE(sent<messages::Fence>(probe.say(deadline)).empty());
  const auto fences = sent<messages::Fence>(probe.timer(2));
  EXPECT_EQ(fences.size(), 4u);
  EXPECT_TRUE(probe.timer(2).empty()) << "once";
  return fences.empty() ? "" : fences[0].failure.message;
}

TEST(Coordinator, BelievesTheDeadlineThatNamesARankWithoutOne) {
  const auto unnamed = late(0, "it still runs");
  const auto innocent = late(2, "no sign of rank 1", {{1}});
  const auto right = late(1, "no sign of rank 3", {{3}});
  const auto several = late(0, "no sign of rank 1, 3", {{1}, {3}});

  EXPECT_EQ(verdict_on({unnamed}), "it still runs");
  EXPECT_EQ(verdict_on({unnamed, right}), "no sign of rank 3");
  EXPECT_EQ(verdict_on({innocent, unnamed, right}), "no sign of rank 3");
  EXPECT_EQ(verdict_on({right, innocent}), "no sign of rank 3");
  EXPECT_EQ(verdict_on({innocent}), "no sign of rank 1") << "as far as is known";
  EXPECT_EQ(verdict_on({unnamed, innocent, late(1, "it still runs")}), "no sign of rank 1")
      << "better than none";
  EXPECT_EQ(verdict_on({several, innocent}), "no sign of rank 1, 3");
  EXPECT_EQ(verdict_on({several, right}), "no sign of rank 3") << "rank 1 waits";
  EXPECT_EQ(verdict_on({late(0, "no sign of rank 1", {{1}}), late(3, "no sign of me", {{3}}), right}),
            "no sign of me")
      << "its threads run, and its device does not";
}

TEST(Coordinator, HearsNobodyOnceAllSpokeOrOneIsLost) {
  for (const bool is_lost : {false, true}) {
    CoordinatorMachine machine({WorldSize{2}});
    MachineProbe probe(machine);
    for (int rank : {0, 1}) probe.say(Join{Rank{rank}, WorldSize{2}, 5, "a"});
    EXPECT_TRUE(sent<messages::Fence>(probe.say(late(0, "no sign of rank 1", {{1}}))).empty());

    const auto told = sent<messages::Fence>(
        is_lost ? probe.say(messages::PeerLost{Rank{1}, {true, core::Errc::peer_lost, "connection closed"}})
                : probe.say(late(1, "no sign of rank 0", {{0}})));

    ASSERT_EQ(told.size(), 2u);
    EXPECT_EQ(told[0].failure.message, is_lost ? "connection closed" : "no sign of rank 1");
    EXPECT_TRUE(probe.timer(2).empty());
  }
}

TEST(Coordinator, ARankThatHasLeftMayCloseItsConnection) {
  CoordinatorMachine machine({WorldSize{2}});
  MachineProbe probe(machine);
  probe.say(Join{Rank{0}, WorldSize{2}, 5, "a"});
  probe.say(Join{Rank{1}, WorldSize{2}, 5, "a"});
  probe.say(messages::Leave{Rank{1}});

  auto lost = probe.say(messages::PeerLost{Rank{1}, {true, core::Errc::peer_lost, "connection closed"}});
  auto last = probe.say(messages::Leave{Rank{0}});

  EXPECT_TRUE(lost.empty());
  EXPECT_EQ(sent<messages::Farewell>(last).size(), 2u);
}

TEST(Coordinator, RefusesALateComer) {
  CoordinatorMachine machine({WorldSize{1}});
  MachineProbe probe(machine);
  probe.say(Join{Rank{0}, WorldSize{1}, 5, "a"});

  auto late = probe.say(Join{Rank{3}, WorldSize{1}, 5, "a"});

  ASSERT_EQ(sent<messages::Refused>(late).size(), 1u);
  EXPECT_EQ(sent<messages::Refused>(late)[0].failure.code, core::Errc::stale_epoch);
}

TEST(Coordinator, AnswersAStoreRequestOnceTheKeyExists) {
  CoordinatorMachine machine({WorldSize{2}});
  MachineProbe probe(machine);

  auto asked = probe.say(messages::StoreGet{7, "key"});
  auto set = probe.say(messages::StoreSet{"key", "value"});
  auto later = probe.say(messages::StoreGet{8, "key"});

  EXPECT_TRUE(asked.empty());
  EXPECT_EQ(sent<messages::StoreValue>(set), (std::vector<messages::StoreValue>{{7, "value"}}));
  EXPECT_EQ(sent<messages::StoreValue>(later), (std::vector<messages::StoreValue>{{8, "value"}}));
}

TEST(Coordinator, NamesTheRanksThatMissTheJoinDeadline) {
  CoordinatorMachine machine({WorldSize{3}, std::chrono::seconds(20)});
  MachineProbe probe(machine);
  auto started = probe.start();
  probe.say(Join{Rank{1}, WorldSize{3}, 5, "a"});

  auto late = probe.timer(0);
  auto later = probe.say(Join{Rank{0}, WorldSize{3}, 5, "a"});

  ASSERT_EQ(started.size(), 1u);
  EXPECT_EQ(std::get<ArmTimer>(started[0]).after, std::chrono::seconds(20));
  ASSERT_EQ(sent<messages::Refused>(late).size(), 1u);
  EXPECT_EQ(sent<messages::Refused>(late)[0].failure.code, core::Errc::timeout);
  EXPECT_EQ(
      sent<messages::Refused>(late)[0].failure.message,
      "the job did not form within 20 s: rank 0 still waits for rank 0, 2 to join; start what is missing, "
      "or look into its log");
  ASSERT_EQ(sent<messages::Refused>(later).size(), 1u);
  EXPECT_EQ(sent<messages::Refused>(later)[0], sent<messages::Refused>(late)[0])
      << "who comes too late hears why";
}

}  // namespace
}  // namespace troupe::actors
