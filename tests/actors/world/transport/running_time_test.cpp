#include "actors/world/transport/running_time.hpp"

#include <gtest/gtest.h>

#include <chrono>

namespace troupe::actors {
namespace {

using namespace std::chrono_literals;

TEST(RunningTime, LeavesOutWhereATimerIsLate) {
  RunningTime time;
  RunningTime::Time due = 10s;

  EXPECT_EQ(time.now(9s, due), 9s);
  EXPECT_EQ(time.absence_before(9s), 0s);
  EXPECT_EQ(time.now(16s, due), 10s) << "6 s after the timer was due";
  EXPECT_EQ(due, 16s);
  EXPECT_EQ(time.now(17s, due), 11s);
  EXPECT_EQ(time.including_absences(11s), 17s);
}

TEST(RunningTime, KnowsOfAnAbsenceForAMoment) {
  RunningTime time;
  RunningTime::Time due = 10s;
  const auto back = time.now(16s, due);

  EXPECT_EQ(time.absence_before(back), 6s);
  EXPECT_EQ(time.absence_before(back + 900ms), 6s);
  EXPECT_EQ(time.absence_before(back + 1s), 0s);
}

}  // namespace
}  // namespace troupe::actors
