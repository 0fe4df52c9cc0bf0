#include "apps/gpt/layers/rotary.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/apps_gpt/gradient_check.hpp"

namespace troupe::apps::gpt {
namespace {

TEST(Rotary, TurnsElementIWithElementIPlusHalfByItsAngle) {
  const Rotary<double> rotary(8, 4, 100.0);
  std::vector<double> x(3 * 4, 0);  // positions 0, 1, 2 of one head
  x[8] = 1;                         // position 2, pair 0
  x[9] = 1;                         // position 2, pair 1, which turns slower by 100^(-1/2)

  rotary.forward(1, 3, 1, x.data());

  EXPECT_DOUBLE_EQ(x[8], std::cos(2.0));
  EXPECT_DOUBLE_EQ(x[10], std::sin(2.0));
  EXPECT_DOUBLE_EQ(x[9], std::cos(0.2));
  EXPECT_DOUBLE_EQ(x[11], std::sin(0.2));
}

TEST(Rotary, StartsEverySequenceAtPositionZero) {
  const Rotary<double> rotary(4, 2, 10000.0);
  std::vector<double> x = {1, 0, 1, 0, 1, 0, 1, 0};  // two sequences of two positions

  rotary.forward(2, 2, 1, x.data());

  EXPECT_EQ(x[4], 1);
  EXPECT_EQ(x[6], x[2]);
  EXPECT_DOUBLE_EQ(x[6], std::cos(1.0));
}

TEST(Rotary, BackwardAgreesWithFiniteDifferences) {
  const Rotary<double> rotary(5, 6, 50.0);
  constexpr std::size_t kElements = 2 * 5 * 2 * 6;
  auto x = some_values(kElements, 1);
  const auto d_y = some_values(kElements, 2);
  auto d_x = d_y;

  rotary.backward(2, 5, 2, d_x.data());

  expect_gradient(
      x, d_x,
      [&] {
        auto y = x;
        rotary.forward(2, 5, 2, y.data());
        return weighted_sum(y, d_y);
      },
      "x");
}

}  // namespace
}  // namespace troupe::apps::gpt
