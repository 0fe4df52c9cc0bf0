#include "actors/shell/role_host.hpp"

#include <fmt/format.h>

#include <gtest/gtest.h>

#include "tests/actors/shell/script_machine.hpp"

namespace troupe::actors {
namespace {

using core::Step;
using messages::Role;
using namespace std::chrono_literals;

constexpr messages::Address kSelf{{1}, Role::conductor, 0};

/// Writes down what a host wants done.
struct Sink final : EffectSink {
  void post(messages::Envelope envelope) override {
    done.push_back(fmt::format("{} of epoch {} to {}", messages::name_of(envelope.body), envelope.epoch.value,
                               messages::to_string(envelope.to)));
  }
  void arm(TimerId id, std::uint64_t generation, std::chrono::nanoseconds after) override {
    done.push_back(fmt::format("timer {} after {} ns", id, after.count()));
    generations.push_back(generation);
  }
  void perform(const messages::Address& self, const Work&) override {
    done.push_back("work of " + messages::to_string(self));
  }

  std::vector<std::string> done;
  std::vector<std::uint64_t> generations;
};

class RoleHostTest : public testing::Test {
 protected:
  void hear(messages::Message body, core::Epoch epoch = {5}) {
    host.receive({{}, kSelf, epoch, std::move(body)});
  }

  Sink sink;
  ScriptMachine::Script script;
  std::chrono::nanoseconds now = 1s;
  Tracer tracer{[this] { return now; }};
  RoleHost host{kSelf, {5}, std::make_unique<ScriptMachine>(&script), sink, &tracer, [this] { return now; }};
};

TEST_F(RoleHostTest, CarriesEffectsOutInTheirOrder) {
  script.on_message = [](const messages::Envelope&, Outbox& outbox) {
    outbox.send({{0}, Role::coordinator, 0}, messages::Leave{{1}});
    outbox.perform(LaunchCollective{});
    outbox.arm(3, 7ns);
    outbox.send({{1}, Role::trainer, 0}, messages::Farewell{});
  };

  hear(messages::StepBegan{});

  EXPECT_EQ(sink.done, (std::vector<std::string>{"Leave of epoch 5 to coordinator @ rank 0",
                                                 "work of conductor @ rank 1", "timer 3 after 7 ns",
                                                 "Farewell of epoch 5 to trainer @ rank 1"}));
}

TEST_F(RoleHostTest, DropsMessagesOfOtherEpochsAndCountsThem) {
  hear(messages::StepBegan{}, {4});
  hear(messages::StepBegan{}, {6});
  hear(messages::StepBegan{}, {5});

  EXPECT_EQ(script.heard, (std::vector<std::string>{"StepBegan"}));
  EXPECT_EQ(host.stale_messages(), 2u);
}

TEST_F(RoleHostTest, MovedOrCancelledTimersDoNotFire) {
  script.on_message = [](const messages::Envelope& envelope, Outbox& outbox) {
    if (std::holds_alternative<messages::StepBegan>(envelope.body)) outbox.arm(3, 7ns);
    if (std::holds_alternative<messages::Farewell>(envelope.body)) outbox.cancel(3);
  };
  hear(messages::StepBegan{});
  hear(messages::StepBegan{});

  host.timer(3, sink.generations[0]);
  EXPECT_EQ(script.timers, 0) << "it was moved";
  host.timer(3, sink.generations[1]);
  EXPECT_EQ(script.timers, 1);
  host.timer(3, sink.generations[1]);
  EXPECT_EQ(script.timers, 1) << "it fires once";

  hear(messages::StepBegan{});
  hear(messages::Farewell{});
  host.timer(3, sink.generations[2]);
  EXPECT_EQ(script.timers, 1) << "it was cancelled";
}

TEST_F(RoleHostTest, ReportsWhoWaitsForWhatSinceWhen) {
  now = 3s;
  hear(messages::StepBegan{});
  now = 5s;

  EXPECT_EQ(render({host.report()}, now),
            "conductor @ rank 1: scripted, waits for its cue (last StepBegan 2.000 s ago)\n");
}

TEST_F(RoleHostTest, TracesEveryMessageAsASpanOfItsTrack) {
  script.on_message = [this](const messages::Envelope&, Outbox&) { now += 4us; };

  hear(messages::StepBegan{});

  auto events = tracer.take();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].track, "conductor @ rank 1");
  EXPECT_EQ(events[0].name, "StepBegan");
  EXPECT_EQ(events[0].end - events[0].begin, 4us);
}

}  // namespace
}  // namespace troupe::actors
