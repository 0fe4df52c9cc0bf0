#include "apps/gpt/model/schedule.hpp"

#include <gtest/gtest.h>

namespace troupe::apps::gpt {
namespace {

constexpr Schedule kSchedule{.peak = 1.0, .floor = 0.1, .warmup = core::Step{4}, .total = core::Step{15}};

double at(std::int64_t step) {
  return kSchedule.learning_rate(core::Step{step});
}

TEST(Schedule, RisesLinearlyToThePeak) {
  EXPECT_DOUBLE_EQ(at(0), 0.2);
  EXPECT_DOUBLE_EQ(at(3), 0.8);
  EXPECT_DOUBLE_EQ(at(4), 1.0);
}

TEST(Schedule, FallsByHalfACosineToTheFloor) {
  EXPECT_DOUBLE_EQ(at(9), 0.55);
  EXPECT_DOUBLE_EQ(at(14), 0.1);
  EXPECT_DOUBLE_EQ(at(1000), 0.1);
  for (std::int64_t step = 4; step < 14; ++step) EXPECT_GT(at(step), at(step + 1));
}

TEST(Schedule, WithoutWarmupStartsAtThePeak) {
  const Schedule schedule{.peak = 1.0, .floor = 0, .warmup = core::Step{0}, .total = core::Step{1}};

  EXPECT_DOUBLE_EQ(schedule.learning_rate(core::Step{0}), 1.0);
}

}  // namespace
}  // namespace troupe::apps::gpt
