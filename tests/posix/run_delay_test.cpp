#include "posix/run_delay.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace troupe::posix {
namespace {

using namespace std::chrono_literals;

void stay_on(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  ASSERT_EQ(sched_setaffinity(0, sizeof(set), &set), 0);
}

TEST(RunDelay, GrowsWhileAnotherHasTheProcessor) {
  const int processor = sched_getcpu();
  std::atomic<bool> has_ended = false;
  std::thread other([&] {
    stay_on(processor);
    while (!has_ended) continue;
  });
  std::chrono::nanoseconds delay{}, took{};
  std::thread own([&] {
    stay_on(processor);
    const auto before = run_delay();
    const auto began = std::chrono::steady_clock::now();
    while (took < 400ms) took = std::chrono::steady_clock::now() - began;
    delay = run_delay() - before;
  });
  own.join();
  has_ended = true;
  other.join();
  if (delay == 0ns) GTEST_SKIP() << "this system keeps no /proc/thread-self/schedstat";
  EXPECT_GT(delay, took / 10) << "two that share one processor have half of it each";
  EXPECT_LT(delay, took);
}

TEST(RunDelay, IsNotTimeAsleep) {
  const auto before = run_delay();
  const auto began = std::chrono::steady_clock::now();
  std::atomic<int> never = 0;
  std::thread waker([&] {
    while (std::chrono::steady_clock::now() - began < 300ms) std::this_thread::yield();
    never = 1;
    never.notify_one();
  });
  never.wait(0);
  waker.join();
  EXPECT_LT(run_delay() - before, 200ms);
}

}  // namespace
}  // namespace troupe::posix
