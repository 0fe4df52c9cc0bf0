#include "apps/gpt/layers/rotary.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/apps_gpt/gradient_check.hpp"

namespace troupe::apps::gpt {
namespace {

TEST(Rotary, TurnsElementPairsHalfAWidthApart) {
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
TEST(Rotary, ScaledAsLlama3SlowsOnlySlowPairs) {
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
TEST(Rotary, ScaledAsLlama3CallsPairsFastByTheirTurns) {
  const RotaryScaling scaling{.kind = RotaryScaling::Kind::llama3, .factor = 8, .original_context = 300};

  const Rotary<double> rotary(2, 8, 10000, scaling);

  EXPECT_DOUBLE_EQ(rotary.sine()[5], std::sin(0.1));
  EXPECT_DOUBLE_EQ(rotary.sine()[6], std::sin(0.00125));
}

struct Angles {
  RotaryScaling scaling;
  std::size_t context;
  std::vector<double> angles;
};

/// Made by the functions of transformers 5 (ROPE_INIT_FUNCTIONS) in f32, for heads of 16 and a base of 10000.
std::vector<Angles> angles_of_transformers() {
  using Kind = RotaryScaling::Kind;
  const RotaryScaling yarn{
      .kind = Kind::yarn, .factor = 8, .original_context = 512, .attention_factor = 1.2079441541679836};
  auto between = yarn, tiny = yarn;
  between.fast_turns = 16;
  between.slow_turns = 2;
  between.whole_pairs = false;
  tiny.factor = 40;
  tiny.original_context = 4;
  tiny.attention_factor = 1.3688879454113936;
  const RotaryScaling longrope{.kind = Kind::longrope,
                               .original_context = 512,
                               .attention_factor = 1.1547005383792515,
                               .short_factors = {1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7},
                               .long_factors = {1, 2, 4, 8, 16, 32, 48, 64.5}};
  return {
      {yarn, 8, {1, 0.24705293, 0.05625, 0.01087033, 0.00125, 0.00039528473, 0.000125, 3.9528473e-05}},
      {between, 8, {1, 0.31622776, 0.07160846, 0.007324998, 0.00125, 0.00039528473, 0.000125, 3.9528473e-05}},
      {tiny, 8, {1, 0.0079056946, 0.0025, 0.00079056946, 0.00025, 7.9056946e-05, 2.5e-05, 7.9056944e-06}},
      {longrope,
       512,
       {1, 0.28747975, 0.083333335, 0.024325214, 0.0071428571, 0.0021081853, 0.000625, 0.00018601633}},
      {longrope,
       513,
       {1, 0.15811388, 0.025, 0.0039528473, 0.000625, 9.8821183e-05, 2.0833333e-05, 4.9027562e-06}},
  };
}

TEST(Rotary, ScaledAsYarnOrLongropeTurnsAsTransformersDoes) {
  for (const auto& [scaling, context, angles] : angles_of_transformers()) {
    const Rotary<double> rotary(context, 16, 10000, scaling);

    for (std::size_t i = 0; i < angles.size(); ++i) {
      const double sine = std::sin(angles[i]) * scaling.attention_factor;
      EXPECT_NEAR(rotary.sine()[8 + i], sine, 1e-6 * sine) << i;
      EXPECT_NEAR(rotary.cosine()[8 + i], std::cos(angles[i]) * scaling.attention_factor, 1e-6) << i;
    }
  }
}

TEST(Rotary, OfPartOfASequenceTurnsAsTheWhole) {
  const auto [scaling, context, angles] = angles_of_transformers().back();
  const Rotary<double> whole(context, 16, 10000, scaling);
  const std::vector<std::size_t> positions{3, 4};

  const Rotary<double> part(positions, context, 16, 10000, scaling);

  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(part.sine()[i], whole.sine()[3 * 8 + i]);
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
