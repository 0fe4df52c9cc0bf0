#include "actors/session/pace.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <optional>

namespace troupe::actors {
namespace {

using namespace std::chrono_literals;

std::int64_t count(std::chrono::nanoseconds time) {
  return time.count();
}

/// A trainer with two lanes that prepares each step for a while, computes and waits.
struct Course {
  std::optional<messages::StepsTimed> step(std::chrono::nanoseconds prepares,
                                           std::chrono::nanoseconds computes, std::chrono::nanoseconds waits,
                                           std::optional<std::chrono::nanoseconds> run_delay = {}) {
    now += prepares;
    pace.step_begins(now);
    now += computes + waits;
    StepTimes times;
    times.total = computes + waits;
    times.exposed = waits;
    times.run_delay = run_delay;
    return pace.step_over(now, {3}, times, 2);
  }

  Pace pace{1s};
  std::chrono::nanoseconds now{5s};
};

TEST(PaceOfARank, IsWithoutWaitsAndToldOncePerInterval) {
  Course course;
  course.step(0s, 3s, 0s);
  int told = 0;
  for (int i = 0; i < 100; ++i) {
    const auto timed = course.step(4ms, 16ms, 80ms);
    if (!timed) continue;
    ++told;
    EXPECT_EQ(*timed, (messages::StepsTimed{{3}, 10, 2, count(10ms), 0, count(100ms)}));
  }
  EXPECT_EQ(told, 10);
}

TEST(PaceOfARank, NeedsEightSteps) {
  Course course;
  course.step(0s, 3s, 0s);
  for (int i = 0; i < 7; ++i) EXPECT_FALSE(course.step(0s, 2s, 0s)) << i;
  EXPECT_EQ(course.step(0s, 2s, 0s), (messages::StepsTimed{{3}, 8, 2, count(1s), 0, count(2s)}));
}

TEST(PaceOfARank, IsNotThatOfARarePauseBetweenSteps) {
  Course course;
  course.step(0s, 3s, 0s);
  for (int i = 0; i < 7; ++i) course.step(2ms, 98ms, 0s);
  EXPECT_EQ(course.step(30s, 98ms, 0s),
            (messages::StepsTimed{
                {3}, 8, 2, count(50ms), 0, count(std::chrono::nanoseconds(7 * 100ms + 30098ms) / 8)}));
}

TEST(PaceOfARank, IsThatOfPausesWithinSteps) {
  Course course;
  course.step(0s, 3s, 0s);
  for (int i = 0; i < 7; ++i) course.step(0s, 20ms, 0s);
  EXPECT_EQ(course.step(0s, 1060ms, 0s), (messages::StepsTimed{{3}, 8, 2, count(75ms), 0, count(150ms)}));
}

TEST(PaceOfARank, KnowsDelaysOfStepsThatLooked) {
  Course course;
  course.step(0s, 3s, 0s);
  for (int i = 0; i < 7; ++i) course.step(0s, 100ms, 0s);
  EXPECT_EQ(course.step(0s, 300ms, 0s, 90ms),
            (messages::StepsTimed{{3}, 8, 2, count(62500us), count(18750us), count(125ms)}))
      << "0.3 of a mean of 62.5 ms for a lane";
}

}  // namespace
}  // namespace troupe::actors
