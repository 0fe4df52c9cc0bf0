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

// Angles of position 1, by the formulas of transformers (_compute_llama3_parameters), worked out in Python.
TEST(Rotary, ScaledAsLlama3TurnsSlowPairsSlowerAndFastOnesAsBefore) {
  const RotaryScaling scaling{.kind = RotaryScaling::Kind::llama3, .factor = 8, .original_context = 1000};

  const Rotary<double> rotary(2, 8, 10000, scaling);

  const auto sine = rotary.sine().subspan(4);
  EXPECT_DOUBLE_EQ(sine[0], std::sin(1.0));
  EXPECT_DOUBLE_EQ(sine[1], std::sin(0.1));
  EXPECT_DOUBLE_EQ(sine[2], std::sin(0.002975352506846947));
  EXPECT_DOUBLE_EQ(sine[3], std::sin(0.000125));
}

// At position 1 of an original context of 300 the angles make 47.7, 4.8 and 0.5 turns; from 4 on they are
// fast.
TEST(Rotary, ScaledAsLlama3CallsPairsFastAndSlowByTheirTurns) {
  const RotaryScaling scaling{.kind = RotaryScaling::Kind::llama3, .factor = 8, .original_context = 300};

  const Rotary<double> rotary(2, 8, 10000, scaling);

  EXPECT_DOUBLE_EQ(rotary.sine()[5], std::sin(0.1));
  EXPECT_DOUBLE_EQ(rotary.sine()[6], std::sin(0.00125));
}

TEST(Rotary, ScaledLinearlyDividesEveryAngle) {
  const Rotary<double> rotary(3, 4, 100, {.kind = RotaryScaling::Kind::linear, .factor = 4});

  EXPECT_DOUBLE_EQ(rotary.sine()[4], std::sin(2.0 / 4));
  EXPECT_DOUBLE_EQ(rotary.sine()[5], std::sin(0.2 / 4));
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
