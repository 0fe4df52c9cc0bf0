#include <gtest/gtest.h>

#include <atomic>
#include <caf/actor_system.hpp>
#include <caf/event_based_actor.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "actors/shell/caf_seam.hpp"
#include "actors/shell/caf_stage.hpp"
#include "actors/shell/subscribers.hpp"
#include "tests/actors/world/heard_log.hpp"

namespace troupe::actors {
namespace {

using messages::Address;
using messages::Role;

constexpr int kParts = 6;

/// Gives every message on to the next of a ring and never stops.
class Relay final : public Machine {
 public:
  /// `living` counts the relays there are, and outlives them.
  Relay(Address next, std::atomic<int>* living) : next_(next), living_(*living) { ++living_; }
  ~Relay() override { --living_; }

  void start(Outbox& outbox) override {
    for (int i = 0; i < 4; ++i) outbox.send(next_, messages::BucketReduced{});
  }
  void receive(const messages::Envelope& envelope, Outbox& outbox) override {
    outbox.send(next_, envelope.body);
  }
  void timer(TimerId, Outbox&) override {}
  std::string_view state() const override { return "relaying"; }
  std::string waiting_for() const override { return ""; }

 private:
  Address next_;
  std::atomic<int>& living_;
};

struct Load {
  std::atomic<int> living{0};  ///< relays
  std::atomic<int> heard{0};   ///< events that came to the subscriber
};

Address part(int index) {
  const auto number = static_cast<std::uint32_t>(index);
  return {{0}, index == 0 ? Role::conductor : Role::gradient_bucket, number};
}

caf::behavior count_envelopes(caf::event_based_actor*, std::atomic<int>* heard) {
  return {[heard](const RankEvent&) { heard->fetch_add(1); }};
}

/// A stage whose parts post to each other, and to a subscriber, as fast as they can.
std::unique_ptr<CafStage> busy_stage(std::vector<Role> detached, Load& load) {
  CafStageOptions options;
  options.workers = 2;
  options.detached = std::move(detached);
  options.now = [] { return std::chrono::nanoseconds(0); };
  auto stage = CafStage::create(std::move(options)).value();
  for (int i = 0; i < kParts; ++i)
    stage->spawn(part(i), std::make_unique<Relay>(part((i + 1) % kParts), &load.living));
  stage->subscribe(stage->system().spawn(count_envelopes, &load.heard));
  stage->start();
  return stage;
}

void end_busy_stages(int times, const std::vector<Role>& detached) {
  for (int i = 0; i < times; ++i) {
    Load load;
    auto stage = busy_stage(detached, load);
    while (load.heard < 20) std::this_thread::yield();
    ASSERT_EQ(load.living, kParts);

    stage.reset();

    ASSERT_EQ(load.living, 0) << "after teardown " << i;
  }
}

TEST(CafStageTeardown, EndsAThousandTimesWhileActorsPost) {
  end_busy_stages(1000, {});
}

TEST(CafStageTeardown, EndsWhileAnActorWithAnOwnThreadPosts) {
  end_busy_stages(100, {Role::conductor});
}

/// Does not end when it is told to, but when it is killed.
caf::behavior ignore_exits(caf::event_based_actor* self) {
  self->set_exit_handler([](const caf::exit_msg&) {});
  return {[](const RankEvent&) {}};
}

TEST(CafStageTeardown, EndsAnActorOfTheTrainerThatIgnoresExits) {
  CafStageOptions options;
  const HeardLog log;
  options.now = [] { return std::chrono::nanoseconds(0); };
  options.log = log.of(Subsystem::actors);
  options.patience = std::chrono::milliseconds(20);
  auto stage = CafStage::create(std::move(options)).value();
  stage->subscribe(stage->system().spawn(ignore_exits));
  stage->start();

  stage.reset();

  EXPECT_EQ(log.text(), "");
}

TEST(CafStageTeardown, LeavesBehindATrainersActorThatDoesNotReturn) {
  CafStageOptions options;
  const HeardLog log;
  options.now = [] { return std::chrono::nanoseconds(0); };
  options.log = log.of(Subsystem::actors);
  options.patience = std::chrono::milliseconds(20);
  Load load;
  // What the actor waits for outlives the test.
  static std::promise<void> never;
  auto stage = CafStage::create(std::move(options)).value();
  for (int i = 0; i < kParts; ++i)
    stage->spawn(part(i), std::make_unique<Relay>(part((i + 1) % kParts), &load.living));
  const auto stuck = stage->system().spawn([](caf::event_based_actor*) -> caf::behavior {
    return {[](const RankEvent&) { never.get_future().wait(); }};
  });
  stage->subscribe(stuck);
  stage->start();
  tell(stuck, RankEvent{});

  stage.reset();

  EXPECT_EQ(load.living, 0) << "roles have ended";
  EXPECT_EQ(log.text(), "an actor of the trainer does not end; it is left behind, with the actor system");
  never.set_value();
}

}  // namespace
}  // namespace troupe::actors
