#include "actors/world/simulation/event_loop.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace troupe::actors {
namespace {

using namespace std::chrono_literals;

/// The order in which the seed runs four actions of one moment.
std::string order_of(std::uint64_t seed) {
  EventLoop loop(seed);
  std::string order;
  for (char name : {'a', 'b', 'c', 'd'}) loop.after(1ms, [&order, name] { order.push_back(name); });
  loop.run({});
  return order;
}

TEST(EventLoop, RunsActionsInOrderOfTheirTimes) {
  EventLoop loop(1);
  std::vector<std::chrono::nanoseconds> times;
  for (auto delay : {30ms, 10ms, 20ms}) loop.after(delay, [&] { times.push_back(loop.now()); });

  EXPECT_EQ(loop.run({}), EventLoop::Stop::quiet);

  EXPECT_EQ(times, (std::vector<std::chrono::nanoseconds>{10ms, 20ms, 30ms}));
  EXPECT_EQ(loop.events(), 3U);
}

TEST(EventLoop, ReachesEveryOrderOfTheActionsOfOneMoment) {
  std::set<std::string> orders;
  for (std::uint64_t seed = 0; seed < 400; ++seed) orders.insert(order_of(seed));

  EXPECT_EQ(orders.size(), 24U);
}

TEST(EventLoop, LetsWhatIsScheduledNowCompeteWithReadyWork) {
  std::set<std::string> orders;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    EventLoop loop(seed);
    std::string order;
    loop.after(0ms, [&] { loop.after(0ms, [&] { order += "child "; }); });
    loop.after(0ms, [&] { order += "other "; });
    loop.run({});
    orders.insert(order);
  }

  EXPECT_EQ(orders, (std::set<std::string>{"child other ", "other child "}));
}

TEST(EventLoop, DoesNotRunWhatWasCancelled) {
  EventLoop loop(1);
  bool ran = false;
  AlarmId later = loop.arm(5ms, [&] { ran = true; });
  AlarmId ready = loop.arm(0ms, [&] { ran = true; });

  loop.cancel(later);
  loop.cancel(ready);
  loop.cancel(later);

  EXPECT_EQ(loop.run({}), EventLoop::Stop::quiet);
  EXPECT_FALSE(ran);
  EXPECT_EQ(loop.events(), 0U);
}

TEST(EventLoop, CancelsNothingByTheIdOfAPastAlarm) {
  EventLoop loop(1);
  AlarmId first = loop.arm(1ms, [] {});
  loop.run({});
  bool ran = false;
  loop.arm(1ms, [&] { ran = true; });

  loop.cancel(first);
  loop.run({});

  EXPECT_TRUE(ran);
}

TEST(EventLoop, StopsAtItsLimitsAndAtTheCondition) {
  EventLoop loop(1);
  int runs = 0;
  std::function<void()> again = [&] {
    ++runs;
    loop.after(10ms, again);
  };
  loop.after(10ms, again);

  EXPECT_EQ(loop.run({.time = 35ms}), EventLoop::Stop::time_limit);
  EXPECT_EQ(loop.now(), 35ms);
  EXPECT_EQ(runs, 3);
  EXPECT_EQ(loop.run({.events = 2}), EventLoop::Stop::event_limit);
  EXPECT_EQ(runs, 5);
  EXPECT_EQ(loop.run_until([&] { return runs == 7; }, {}), EventLoop::Stop::condition);
  EXPECT_EQ(loop.now(), 70ms);
}

/// A crowd of actions that make more actions at random moments.
std::uint64_t trace_of(std::uint64_t seed, std::string_view noted) {
  EventLoop loop(seed);
  RandomStream random(seed, "test", "crowd");
  std::function<void()> spread = [&] {
    for (std::uint32_t i = 0, count = random.below(3); i < count; ++i) {
      loop.schedule(std::chrono::microseconds(random.below(3)), "spread", spread);
    }
  };
  for (int i = 0; i < 50; ++i) loop.schedule(0ms, "start", spread);
  loop.run({.events = 2000});
  loop.note(noted);
  return loop.trace_hash();
}

TEST(EventLoop, TwoRunsOfASeedHaveOneTraceHash) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) EXPECT_EQ(trace_of(seed, "x"), trace_of(seed, "x"));
}

TEST(EventLoop, TheTraceHashSeesTheSeedAndTheNotes) {
  EXPECT_NE(trace_of(1, "x"), trace_of(2, "x"));
  EXPECT_NE(trace_of(1, "x"), trace_of(1, "y"));
}

TEST(RandomStream, ExtraDrawInOneComponentChangesNothingInAnother) {
  RandomStream first(7, "network", "delay");
  RandomStream second(7, "storage", "delay");
  std::uint32_t alone = RandomStream(7, "storage", "delay").bits();

  std::uint32_t other = first.bits();
  first.bits();

  EXPECT_EQ(second.bits(), alone);
  EXPECT_NE(other, alone);
  EXPECT_NE(RandomStream(7, "network", "loss").bits(), other);
  EXPECT_NE(RandomStream(8, "network", "delay").bits(), other);
}

}  // namespace
}  // namespace troupe::actors
