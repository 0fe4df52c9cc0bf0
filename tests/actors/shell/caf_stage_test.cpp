#include "actors/shell/caf_stage.hpp"

#include <gtest/gtest.h>

#include <caf/actor_system.hpp>
#include <caf/event_based_actor.hpp>

#include "actors/shell/caf_seam.hpp"
#include "actors/shell/subscribers.hpp"
#include "core/errors.hpp"
#include "tests/actors/shell/script_machine.hpp"

namespace troupe::actors {
namespace {

using core::Step;
using messages::Address;
using messages::Role;
using namespace std::chrono_literals;

constexpr Address kConductor{{1}, Role::conductor, 0};
constexpr Address kSupervisor{{1}, Role::rank_supervisor, 0};
constexpr Address kTrainer{{1}, Role::trainer, 0};

// From CAF 1.0 on no scheduler of its own can be driven message by message.
#if TROUPE_CAF_VERSION < 10000
/// Two machines on a stage whose scheduler the test drives message by message, in virtual time.
class CafStageTest : public testing::Test {
 protected:
  CafStageTest() {
    CafStageOptions options;
    options.rank = {1};
    options.epoch = {5};
    options.policy = SchedulerPolicy::testing;
    options.now = [this] { return now; };
    options.send_remote = [this](const messages::Envelope& envelope) {
      note("remote", envelope);
      return network;
    };
    options.to_trainer = [this](const messages::Envelope& envelope) { note("trainer", envelope); };
    options.perform = [this](const Address& from, const Work&) {
      done.push_back("work of " + messages::to_string(from));
    };
    stage = CafStage::create(std::move(options)).value();
    stage->spawn(kConductor, std::make_unique<ScriptMachine>(&conductor));
    stage->spawn(kSupervisor, std::make_unique<ScriptMachine>(&supervisor));
  }

  caf::scheduler::test_coordinator& scheduler() {
    return dynamic_cast<caf::scheduler::test_coordinator&>(stage->system().scheduler());
  }
  void start() {
    stage->start();
    scheduler().run();
  }
  void play_for(std::chrono::nanoseconds time) {
    while (time > 0s) {
      const auto part = std::min(time, posix::Countdown::kLook);
      scheduler().advance_time(part);
      scheduler().run();
      time -= part;
    }
  }
  void post(Address to, messages::Message body, core::Epoch epoch = {5}) {
    stage->post({kTrainer, to, epoch, std::move(body)});
  }
  void note(const char* where, const messages::Envelope& envelope) {
    done.push_back(fmt::format("{}: {} from {}", where, messages::name_of(envelope.body),
                               messages::to_string(envelope.from)));
  }

  ScriptMachine::Script conductor;
  ScriptMachine::Script supervisor;
  std::vector<std::string> done;
  core::Result<void> network;  ///< what it says of a message to another rank
  std::chrono::nanoseconds now{};
  std::unique_ptr<CafStage> stage;
};

TEST_F(CafStageTest, StartsEveryMachineOnce) {
  start();

  EXPECT_EQ(conductor.starts, 1);
  EXPECT_EQ(supervisor.starts, 1);
}

TEST_F(CafStageTest, RunsNothingBeforeTheSchedulerDoes) {
  stage->start();
  post(kConductor, messages::StepBegan{});

  EXPECT_TRUE(conductor.heard.empty());
  scheduler().run();
  EXPECT_EQ(conductor.heard.size(), 1u);
}

TEST_F(CafStageTest, RunsIdleRolesOnTheThreadOfTheSpeaker) {
  conductor.on_message = [this](const messages::Envelope&, Outbox& outbox) {
    outbox.send(kSupervisor, messages::BucketReduced{});
    outbox.perform(LaunchCollective{});
    outbox.send(kConductor, messages::StepBegan{});
    conductor.on_message = [](const auto&, auto&) {};
  };
  start();

  stage->post_and_run({kTrainer, kConductor, {5}, messages::StepBegan{}});

  EXPECT_EQ(conductor.heard.size(), 2U);
  EXPECT_EQ(supervisor.heard, (std::vector<std::string>{"BucketReduced"}));
  EXPECT_EQ(done, (std::vector<std::string>{"work of conductor @ rank 1"}));
  scheduler().run();
  EXPECT_EQ(conductor.heard.size(), 2U) << "nothing was left to the scheduler";
}

TEST_F(CafStageTest, LeavesRolesToTheSchedulerThatItRunsAlready) {
  start();
  post(kConductor, messages::StepBegan{});

  stage->post_and_run({kTrainer, kConductor, {5}, messages::GradientReady{}});

  EXPECT_TRUE(conductor.heard.empty());
  scheduler().run();
  EXPECT_EQ(conductor.heard, (std::vector<std::string>{"StepBegan", "GradientReady"}));
}

/// They would keep the trainer from its own work for ever.
TEST_F(CafStageTest, LeavesRolesToTheSchedulerThatSpeakWithoutEnd) {
  int turns = 0;
  conductor.on_message = [&](const messages::Envelope&, Outbox& outbox) {
    if (++turns < 100'000) outbox.send(kSupervisor, messages::BucketReduced{});
  };
  supervisor.on_message = [](const messages::Envelope&, Outbox& outbox) {
    outbox.send(kConductor, messages::StepBegan{});
  };
  start();

  stage->post_and_run({kTrainer, kConductor, {5}, messages::StepBegan{}});

  EXPECT_LT(turns, 1000);
  scheduler().run();
  EXPECT_EQ(turns, 100'000);
}

TEST_F(CafStageTest, CarriesEffectsToTheirPlacesInOrder) {
  conductor.on_message = [](const messages::Envelope&, Outbox& outbox) {
    outbox.send({{0}, Role::coordinator, 0}, messages::RankFailed{});
    outbox.perform(LaunchCollective{});
    outbox.send(kTrainer, messages::Published{});
    outbox.send(kSupervisor, messages::BucketReduced{});
    outbox.send({{1}, Role::gradient_bucket, 9}, messages::StepBegan{});
  };
  start();

  post(kConductor, messages::StepBegan{});
  scheduler().run();

  EXPECT_EQ(done, (std::vector<std::string>{"remote: RankFailed from conductor @ rank 1",
                                            "work of conductor @ rank 1",
                                            "trainer: Published from conductor @ rank 1"}));
  EXPECT_EQ(supervisor.heard, (std::vector<std::string>{"BucketReduced"}));
  EXPECT_EQ(stage->message_count(), 5u) << "the one that nobody plays counts too";
}

TEST_F(CafStageTest, UnsendableMessagesFailTheRank) {
  messages::Failure told;
  supervisor.on_message = [&](const messages::Envelope& envelope, Outbox&) {
    told = std::get<messages::RankFailed>(envelope.body).failure;
  };
  start();
  network = core::fail(core::Errc::invalid_argument, "a control message has at most 12 bytes, found 13");

  post({{0}, Role::coordinator, 0}, messages::StoreSet{});
  scheduler().run();

  EXPECT_EQ(supervisor.heard, (std::vector<std::string>{"RankFailed"}));
  EXPECT_EQ(told, messages::failure_of(network));
}

TEST_F(CafStageTest, FiresATimerAtItsTimeAndNotBefore) {
  supervisor.on_start = [](Outbox& outbox) { outbox.arm(2, 10s); };
  std::vector<TimerId> fired;
  supervisor.on_timer = [&](TimerId id, Outbox&) { fired.push_back(id); };
  start();

  play_for(10s - 1ns);
  EXPECT_TRUE(fired.empty());
  play_for(1ns);

  EXPECT_EQ(fired, (std::vector<TimerId>{2}));
}

// This happens after SIGCONT, or when a suspended machine goes on.
TEST_F(CafStageTest, TimerDoesNotCountTimeInWhichNobodyRan) {
  supervisor.on_start = [](Outbox& outbox) { outbox.arm(2, 10s); };
  start();
  play_for(5s);

  scheduler().advance_time(1h);
  scheduler().run();
  play_for(4400ms);
  EXPECT_EQ(supervisor.timers, 0);
  play_for(600ms);

  EXPECT_EQ(supervisor.timers, 1);
}

TEST_F(CafStageTest, ACancelledTimerDoesNotFire) {
  supervisor.on_start = [](Outbox& outbox) { outbox.arm(2, 10s); };
  supervisor.on_message = [](const messages::Envelope&, Outbox& outbox) { outbox.cancel(2); };
  start();

  post(kSupervisor, messages::Welcome{});
  scheduler().run();
  play_for(20s);

  EXPECT_EQ(supervisor.timers, 0);
}

TEST_F(CafStageTest, DropsMessagesOfAnotherEpoch) {
  start();

  post(kConductor, messages::StepBegan{}, {4});
  post(kConductor, messages::StepDecided{}, {5});
  scheduler().run();

  EXPECT_EQ(conductor.heard, (std::vector<std::string>{"StepDecided"}));
}

TEST_F(CafStageTest, TellsASubscriberEachEventOnce) {
  std::vector<RankEvent> heard;
  // With an argument: of none, CAF dereferences a null pointer, which the library's assertions do not let
  // pass.
  const auto listen = [](caf::event_based_actor*, std::vector<RankEvent>* events) -> caf::behavior {
    return {[events](const RankEvent& event) { events->push_back(event); }};
  };
  stage->subscribe(stage->system().spawn(listen, &heard));
  start();

  post(kTrainer, messages::Welcome{});
  post(kSupervisor, messages::BucketReduced{.step = {4}, .bucket = {7}});
  for (auto to : {kConductor, kTrainer}) post(to, messages::StepDecided{.step = {4}, .reason = "NaN"});
  post(kTrainer, messages::StepCommitted{.step = {4}, .commit = false});
  post(kTrainer, messages::StepCommitted{.step = {5}, .commit = true});
  post(kTrainer, messages::Published{});
  post(kTrainer, messages::StepFailed{.step = {6}, .failure = {true, core::Errc::timeout, "rank 3 is late"}});
  scheduler().run();

  using Kind = RankEvent::Kind;
  ASSERT_EQ(heard.size(), 4u) << "nothing can subscribe before a session has joined";
  EXPECT_EQ(heard[0].kind, Kind::bucket_reduced);
  EXPECT_EQ(heard[0].bucket, core::BucketIndex{7});
  EXPECT_EQ(heard[1].kind, Kind::step_decided);
  EXPECT_FALSE(heard[1].committed);
  EXPECT_EQ(heard[1].reason, "NaN");
  EXPECT_EQ(heard[2].kind, Kind::step_committed);
  EXPECT_EQ(heard[2].step, core::Step{5}) << "a refused step commits nothing";
  EXPECT_EQ(heard[3].kind, Kind::failed);
  EXPECT_EQ(heard[3].reason, "rank 3 is late");
}

TEST_F(CafStageTest, NamesActorsThatDoNotAnswerAQuestion) {
  start();

  auto reports = stage->wait_reports(0ms);

  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[0].who, kSupervisor);
  EXPECT_EQ(reports[0].state, "silent");
  EXPECT_EQ(render({reports[0]}, 9s),
            "rank_supervisor @ rank 1: silent, waits for nothing known: it did not answer in time\n")
      << "nobody knows how long it has been so";
}

#endif

TEST(CafStageWithThreads, ReportsWhatEveryActorWaitsFor) {
  ScriptMachine::Script script;
  CafStageOptions options;
  options.rank = {1};
  options.now = [] { return 7s; };
  auto stage = CafStage::create(std::move(options)).value();
  stage->spawn(kConductor, std::make_unique<ScriptMachine>(&script));
  stage->spawn(kSupervisor, std::make_unique<ScriptMachine>(&script));

  auto reports = stage->wait_reports(60s);

  EXPECT_EQ(render(reports, 9s),
            "rank_supervisor @ rank 1: scripted, waits for its cue (last nothing 2.000 s ago)\n"
            "conductor @ rank 1: scripted, waits for its cue (last nothing 2.000 s ago)\n");
}

}  // namespace
}  // namespace troupe::actors
