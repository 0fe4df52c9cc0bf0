#include "actors/coordinator/machine.hpp"

#include <gtest/gtest.h>

#include "tests/actors/support/machine_probe.hpp"

namespace troupe::actors {
namespace {

using core::Rank;
using core::WorldSize;
using messages::Join;

TEST(Coordinator, WelcomesEverybodyAtOnceWhenTheLastHasJoined) {
  CoordinatorMachine machine({WorldSize{2}});
  MachineProbe probe(machine);

  auto first = probe.say(Join{Rank{1}, WorldSize{2}, 5, "a"});
  auto second = probe.say(Join{Rank{0}, WorldSize{2}, 5, "a"});

  EXPECT_TRUE(first.empty());
  ASSERT_EQ(sent<messages::Welcome>(second).size(), 2u);
  EXPECT_EQ(sent<messages::Welcome>(second)[0].members, (std::vector<Rank>{{0}, {1}}));
}

TEST(Coordinator, NamesTheFirstEntryInWhichTwoPlansDiffer) {
  CoordinatorMachine machine({WorldSize{2}});
  MachineProbe probe(machine);
  probe.say(Join{Rank{0}, WorldSize{2}, 5, "a"});
  auto asked = probe.say(Join{Rank{1}, WorldSize{2}, 6, "a"});

  probe.say(messages::PlanLines{Rank{1}, {"same", "theirs"}});
  auto refused = probe.say(messages::PlanLines{Rank{0}, {"same", "ours"}});

  EXPECT_EQ(sent<messages::PlanWanted>(asked).size(), 2u);
  ASSERT_EQ(sent<messages::Refused>(refused).size(), 2u);
  EXPECT_EQ(sent<messages::Refused>(refused)[0].failure.message,
            "rank 1 plans another step than rank 0; the first difference is entry 1: rank 0 has \"ours\", "
            "the other "
            "has \"theirs\"");
}

TEST(Coordinator, RefusesOtherSettings) {
  CoordinatorMachine machine({WorldSize{2}});
  MachineProbe probe(machine);
  probe.say(Join{Rank{0}, WorldSize{2}, 5, "lanes 8"});

  auto refused = probe.say(Join{Rank{1}, WorldSize{2}, 5, "lanes 4"});

  ASSERT_EQ(sent<messages::Refused>(refused).size(), 2u);
  EXPECT_EQ(sent<messages::Refused>(refused)[0].failure.code, core::Errc::mismatch);
  EXPECT_EQ(
      sent<messages::Refused>(refused)[0].failure.message,
      "rank 1 runs with other settings than rank 0; the first difference is entry 0: rank 0 has \"lanes "
      "8\", the other has \"lanes 4\"");
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

TEST(Coordinator, AnswersAStoreRequestAsSoonAsTheKeyIsThere) {
  CoordinatorMachine machine({WorldSize{2}});
  MachineProbe probe(machine);

  auto asked = probe.say(messages::StoreGet{7, "key"});
  auto set = probe.say(messages::StoreSet{"key", "value"});
  auto later = probe.say(messages::StoreGet{8, "key"});

  EXPECT_TRUE(asked.empty());
  EXPECT_EQ(sent<messages::StoreValue>(set), (std::vector<messages::StoreValue>{{7, "value"}}));
  EXPECT_EQ(sent<messages::StoreValue>(later), (std::vector<messages::StoreValue>{{8, "value"}}));
}

TEST(Coordinator, NamesTheRanksThatHaveNotJoinedByTheDeadline) {
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
