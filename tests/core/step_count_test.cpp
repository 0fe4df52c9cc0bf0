#include "core/step_count.hpp"

#include <gtest/gtest.h>

namespace troupe::core {
namespace {

TEST(StepCount, CountsTheLastStepAndNotTheNext) {
  EXPECT_EQ(steps_through(Step{6}), StepCount{7});
  EXPECT_EQ(last_step(StepCount{7}), Step{6});
  EXPECT_EQ(steps_before(Step{7}), StepCount{7});
  EXPECT_EQ(next_step(StepCount{7}), Step{7});
}

TEST(StepCount, IsNoneBeforeTheFirstStep) {
  EXPECT_EQ(steps_through(Step{-1}), StepCount{0});
  EXPECT_EQ(last_step(StepCount{0}), Step{-1});
  EXPECT_EQ(next_step(StepCount{0}), Step{0});
}

}  // namespace
}  // namespace troupe::core
