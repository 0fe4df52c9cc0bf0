#include "core/optimizer/large_gradients.hpp"

#include <gtest/gtest.h>

namespace troupe::core {
namespace {

/// Megatron-Core's rule: above 10 times the largest of the first 100 samples.
// Covers finish-17.
TEST(LargeGradients, AreThoseFarAboveTheFirstHundred) {
  LargeGradients large(10);
  for (int step = 0; step < 100; ++step) {
    EXPECT_EQ(large.exceeded_by(step == 40 ? 3.0 : 1.0), 0) << "the first ones say what is usual";
  }

  EXPECT_EQ(large.exceeded_by(30), 0) << "10 times is not above 10 times";
  EXPECT_EQ(large.exceeded_by(30.5), 3.0);
  EXPECT_EQ(large.exceeded_by(1e6), 3.0);
  EXPECT_EQ(large.exceeded_by(30.5), 3.0) << "a large one does not become usual";
  EXPECT_EQ(large.exceeded_by(2), 0);
}

TEST(LargeGradients, WithoutAFactorNoneAre) {
  LargeGradients large(0);
  for (int step = 0; step < 101; ++step) EXPECT_EQ(large.exceeded_by(step == 100 ? 1e30 : 1.0), 0);
}

}  // namespace
}  // namespace troupe::core
