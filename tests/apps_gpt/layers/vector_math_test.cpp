#include "apps/gpt/layers/vector_math.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace troupe::apps::gpt {
namespace {

TEST(VectorMath, ExponentialIsWithinTwoUnitsInTheLastPlace) {
  for (float x = -87; x <= 88; x += 0.00137F) {
    const double exact = std::exp(static_cast<double>(x));
    const float near = static_cast<float>(exact);
    const double unit = std::nextafter(near, std::numeric_limits<float>::infinity()) - near;
    ASSERT_LE(std::abs(exponential(x) - exact), 2 * unit) << x;
  }
}

TEST(VectorMath, ExponentialOfZeroIsOne) {
  EXPECT_EQ(exponential(0.0F), 1.0F);
}

TEST(VectorMath, ExponentialKeepsItsRangeAndNan) {
  EXPECT_EQ(exponential(-1e9F), exponential(-87.0F));
  EXPECT_EQ(exponential(1e9F), exponential(88.0F));
  EXPECT_TRUE(std::isnan(exponential(std::numeric_limits<float>::quiet_NaN())));
}

TEST(VectorMath, SumsAndMaximaCoverEveryElementOfEveryCount) {
  for (std::size_t count = 1; count < 70; ++count) {
    for (std::size_t place = 0; place < count; ++place) {
      std::vector<float> values(count, -1);
      values[place] = 5;
      ASSERT_EQ(ordered_sum<float>(count, [&](std::size_t i) { return values[i]; }),
                5 - static_cast<float>(count - 1));
      ASSERT_EQ(largest(count, values.data()), 5);
    }
  }
}

}  // namespace
}  // namespace troupe::apps::gpt
