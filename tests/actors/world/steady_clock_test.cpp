#include "actors/world/steady_clock.hpp"

#include <gtest/gtest.h>

#include <future>
#include <mutex>
#include <string>

namespace troupe::actors {
namespace {

using namespace std::chrono_literals;

TEST(SteadyClock, RunsAlarmsInOrderOfTheirTimesAndNotBefore) {
  SteadyClock clock;
  auto begin = clock.now();
  std::string order;
  std::promise<std::chrono::nanoseconds> last;

  clock.arm(20ms, [&] {
    order += "b";
    last.set_value(clock.now());
  });
  clock.arm(5ms, [&] { order += "a"; });

  EXPECT_GE(last.get_future().get() - begin, 20ms);
  EXPECT_EQ(order, "ab");
}

TEST(SteadyClock, DoesNotRunACancelledAlarm) {
  SteadyClock clock;
  bool ran = false;
  std::promise<void> after;

  AlarmId id = clock.arm(10ms, [&] { ran = true; });
  clock.cancel(id);
  clock.arm(15ms, [&] { after.set_value(); });
  after.get_future().wait();

  EXPECT_FALSE(ran);
}

TEST(SteadyClock, AnAlarmMayArmAndCancelOthers) {
  SteadyClock clock;
  std::promise<void> done;
  AlarmId doomed = clock.arm(1h, [] { FAIL(); });

  clock.arm(1ms, [&] {
    clock.cancel(doomed);
    clock.arm(1ms, [&] { done.set_value(); });
  });

  EXPECT_EQ(done.get_future().wait_for(10s), std::future_status::ready);
}

TEST(SteadyClock, DropsWhatHasNotRunWhenItIsDestroyed) {
  auto held = std::make_shared<int>(1);
  {
    SteadyClock clock;
    clock.arm(1h, [held] {});
    EXPECT_EQ(held.use_count(), 2);
  }
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace troupe::actors
