#include "actors/launch/node_admission.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <variant>

namespace troupe::actors {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Guest = NodeAdmission::Guest;
using Joined = NodeAdmission::Joined;
using Refusal = NodeAdmission::Refusal;
using std::chrono::seconds;

LauncherHello hello_of(const std::string& host, int node = -1) {
  LauncherHello hello;
  hello.host = hello.instance = host;
  hello.node = node;
  hello.is_numbered = node >= 0;
  hello.ranks = 2;
  hello.fewest_ranks = 1;
  return hello;
}

/// One that has been a node of the job, which gave it the number, and has kept processes in these slots.
LauncherHello back_of(const std::string& host, int node, std::vector<int> running = {}) {
  auto hello = hello_of(host, node);
  hello.is_numbered = false;
  hello.job = "job";
  hello.started.assign(running.size(), 4);
  hello.running = std::move(running);
  return hello;
}

NodeAdmission admission_of(int nodes, int fewest, std::optional<JobRecord> before = std::nullopt) {
  return {{"job", nodes, fewest, seconds(6)}, hello_of("n0"), "10.0.0.1", std::move(before)};
}

template <class T>
T answered(NodeAdmission::Answer answer) {
  const auto* found = std::get_if<T>(&answer);
  EXPECT_NE(found, nullptr) << answer.index();
  return found == nullptr ? T{} : *found;
}

/// A job of two nodes, of two or up to three.
NodeAdmission begun(int nodes, int fewest) {
  auto admission = admission_of(nodes, fewest);
  EXPECT_TRUE(std::holds_alternative<Guest>(admission.admit(hello_of("n1"), "10.0.0.2", {})));
  EXPECT_EQ(admission.are_all_here(), nodes == 2);
  admission.begin();
  return admission;
}

TEST(NodeAdmission, LauncherThatComesLateIsOneMoreNode) {
  auto admission = begun(3, 2);

  const auto joined = answered<Joined>(admission.admit(hello_of("n2"), "10.0.0.3", {}));

  EXPECT_EQ(joined.node, 2);
  EXPECT_TRUE(joined.is_new);
  EXPECT_EQ(admission.table().members()[2].first_slot, 4);
}

TEST(NodeAdmission, LauncherOfALostNodeHasItsNumber) {
  auto admission = begun(3, 2);
  admission.lose(1);

  const auto joined = answered<Joined>(admission.admit(hello_of("other"), "10.0.0.3", {}));
  const auto moved = answered<Joined>(admission.admit(back_of("n1", 1), "10.0.0.2", {}));

  EXPECT_EQ(joined.node, 1);
  EXPECT_FALSE(joined.is_new);
  EXPECT_EQ(moved.node, 2) << "another has its number";
}

TEST(NodeAdmission, LauncherMayConnectAnewBeforeItsLossIsNoticed) {
  auto admission = begun(2, 2);
  using Reconnected = NodeAdmission::Reconnected;

  EXPECT_EQ(answered<Reconnected>(admission.admit(back_of("n1", 1), "10.0.0.2", {})).node, 1);
  const auto other = answered<Refusal>(admission.admit(hello_of("n2", 1), "10.0.0.2", {}));
  admission.lose(1);
  const auto joined = answered<Joined>(admission.admit(back_of("n1", 1), "10.0.0.2", {}));

  EXPECT_TRUE(other.may_try_again);
  EXPECT_EQ(joined.node, 1);
}

TEST(NodeAdmission, OneTooManyTriesUntilLossesWouldBeNoticed) {
  auto admission = begun(2, 2);
  const auto may_try_again = [&](int second) {
    return answered<Refusal>(admission.admit(hello_of("n2"), "10.0.0.3", seconds(second))).may_try_again;
  };

  for (int second = 10; second < 16; ++second) EXPECT_TRUE(may_try_again(second));
  EXPECT_FALSE(may_try_again(16));
}

/// The launcher of node 0 may have been stopped, and has not looked at its connections since then.
TEST(NodeAdmission, APauseIsNoWaitForAPlace) {
  auto admission = begun(2, 2);
  const auto may_try_again = [&](int second) {
    return answered<Refusal>(admission.admit(hello_of("n2"), "10.0.0.3", seconds(second))).may_try_again;
  };

  EXPECT_TRUE(may_try_again(10));
  EXPECT_TRUE(may_try_again(30)) << "after 20 s in which nothing was noticed";
  admission.lose(1);
  EXPECT_EQ(answered<Joined>(admission.admit(hello_of("n2"), "10.0.0.3", seconds(31))).node, 1);
}

/// A job of three nodes, which are all needed; of the last one, with `ranks` ranks, and the one before it the
/// launchers are lost.
NodeAdmission without_two(int ranks = 2) {
  auto admission = admission_of(3, 3);
  answered<Guest>(admission.admit(hello_of("n1"), "10.0.0.2", {}));
  auto last = hello_of("n2");
  last.ranks = ranks;
  answered<Guest>(admission.admit(last, "10.0.0.3", {}));
  admission.begin();
  admission.lose(1);
  admission.lose(2);
  return admission;
}

TEST(NodeAdmission, LauncherWhosePlaceWasTakenHasAnother) {
  auto admission = without_two();

  const auto fresh = answered<Joined>(admission.admit(hello_of("n2 again"), "10.0.0.3", {}));
  const auto moved = answered<Joined>(admission.admit(back_of("n1", 1, {0, 1}), "10.0.0.2", {}));

  EXPECT_EQ(fresh.node, 1);
  EXPECT_EQ(moved.node, 2);
  EXPECT_THAT(admission.table().members()[2].hello.running, testing::IsEmpty()) << "it was another node's";
  answered<Refusal>(admission.admit(back_of("n2", 2), "10.0.0.3", {}));
}

TEST(NodeAdmission, LauncherStartedAsANodeIsNoOther) {
  auto admission = without_two();
  answered<Joined>(admission.admit(hello_of("n2 again"), "10.0.0.3", {}));
  auto numbered = back_of("n1", 1);
  numbered.is_numbered = true;

  EXPECT_TRUE(answered<Refusal>(admission.admit(numbered, "10.0.0.2", {})).may_try_again);
}

TEST(NodeAdmission, NewLauncherTakesAPlaceOfItsSize) {
  auto admission = without_two(3);
  auto larger = hello_of("n2 again");
  larger.ranks = 3;

  EXPECT_EQ(answered<Joined>(admission.admit(larger, "10.0.0.3", {})).node, 2);
  EXPECT_EQ(answered<Joined>(admission.admit(hello_of("n1 again"), "10.0.0.2", {})).node, 1);
}

TEST(NodeAdmission, LauncherMayComeBackBeforeTheJobBegins) {
  auto admission = admission_of(3, 3);
  const auto first = answered<Guest>(admission.admit(hello_of("first", 1), "10.0.0.2", seconds(10)));
  const auto refused = [&](int second) {
    return answered<Refusal>(admission.admit(hello_of("again", 1), "10.0.0.2", seconds(second)));
  };

  for (int second = 10; second < 16; ++second) EXPECT_TRUE(refused(second).may_try_again);
  EXPECT_FALSE(refused(16).may_try_again) << "two launchers were given one node rank";
  admission.leave(first.id);
  answered<Guest>(admission.admit(hello_of("again", 1), "10.0.0.2", seconds(17)));
  EXPECT_TRUE(refused(90).may_try_again) << "that was another time";
}

TEST(NodeAdmission, RefusesLaunchersOfOtherJobsAndSizes) {
  auto admission = begun(2, 2);
  auto stranger = back_of("n1", 1);
  stranger.job = "another";
  auto larger = back_of("n1", 1);
  larger.ranks = 3;
  admission.lose(1);

  EXPECT_THAT(answered<Refusal>(admission.admit(stranger, "10.0.0.2", {})).reason, HasSubstr("another job"));
  EXPECT_THAT(answered<Refusal>(admission.admit(larger, "10.0.0.2", {})).reason, HasSubstr("3 ranks"));
}

TEST(NodeAdmission, NextLauncherGoesOnWithNodesThatKeptProcesses) {
  const JobRecord before{"job", "", {}, 6, 3, {2, 2}, {0, 0}, {0, 2, 3}};
  const auto adopted = [&](const LauncherHello& hello) {
    auto admission = admission_of(3, 1, before);
    EXPECT_FALSE(admission.are_all_here());
    answered<Guest>(admission.admit(hello, "10.0.0.2", {}));
    EXPECT_TRUE(admission.are_all_here()) << "as many as there were";
    admission.begin();
    const auto config = admission.agent_config({});
    EXPECT_EQ(config.first_generation, 7);
    EXPECT_EQ(config.restarts_before, 3);
    return admission.adopted();
  };
  auto larger = back_of("n1", 1, {0});
  larger.ranks = 3;

  const auto found = adopted(back_of("n1", 1, {0, 1}));

  ASSERT_TRUE(found);
  EXPECT_EQ(found->generation, 6);
  EXPECT_THAT(found->slots, ElementsAre(0, 2, 3));
  EXPECT_THAT(found->running, ElementsAre(2, 3));
  EXPECT_FALSE(adopted(back_of("n1", 1))) << "it has kept none";
  EXPECT_FALSE(adopted(back_of("n2", 2, {0, 1}))) << "it was another node";
  EXPECT_FALSE(adopted(larger)) << "it has another size";
}

TEST(NodeAdmission, RecordsWhatTheNextLauncherMustKnow) {
  const auto admission = begun(3, 2);
  NodeAgentConfig asked;
  asked.max_restarts = 5;
  NodeAgentMachine agent(admission.agent_config(asked));
  agent.start({});

  const auto record = admission.record({"job", "secret", {"gpt"}, 0, 0, {}, {}, {}}, 7, agent);

  EXPECT_EQ(record.secret, "secret");
  EXPECT_EQ(record.generation, 7);
  EXPECT_EQ(record.restarts, 0);
  EXPECT_THAT(record.ranks, ElementsAre(2, 2));
  EXPECT_THAT(record.spares, ElementsAre(0, 0));
  EXPECT_THAT(record.slots, ElementsAre(0, 1, 2, 3));
}

}  // namespace
}  // namespace troupe::actors
