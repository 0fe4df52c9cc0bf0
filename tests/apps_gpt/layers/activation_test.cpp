#include "apps/gpt/layers/activation.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "apps/gpt/layers/vector_math.hpp"
#include "tests/apps_gpt/gradient_check.hpp"

namespace troupe::apps::gpt {
namespace {

std::vector<double> wide_values(std::size_t count, unsigned seed) {
  auto values = some_values(count, seed);
  for (double& value : values) value *= 4;
  return values;
}

TEST(Activation, GeluIsItsTanhForm) {
  const std::vector<double> x = {-3, -0.5, 0, 0.1, 2};
  std::vector<double> y(5);

  gelu_forward(5, x.data(), y.data());

  for (std::size_t i = 0; i < 5; ++i) {
    const double inner = std::sqrt(2 / 3.14159265358979323846) * (x[i] + 0.044715 * std::pow(x[i], 3));
    EXPECT_NEAR(y[i], 0.5 * x[i] * (1 + std::tanh(inner)), 1e-14);
  }
}

TEST(Activation, SwigluGatesWithSilu) {
  const std::vector<double> gate = {-2, 0, 3}, up = {5, 6, -7};
  std::vector<double> y(3);

  swiglu_forward(3, gate.data(), up.data(), y.data());

  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(y[i], gate[i] / (1 + std::exp(-gate[i])) * up[i], 1e-14);
}

TEST(Activation, HasTheSameBitsHoweverWideTheMachineComputes) {
  const auto values = wide_values(2 * 101, 1);
  const std::vector<float> gate(values.begin(), values.begin() + 101), up(values.begin() + 101, values.end());
  std::vector<float> y(101);

  swiglu_forward(101, gate.data(), up.data(), y.data());

  for (std::size_t i = 0; i < 101; ++i) EXPECT_EQ(y[i], gate[i] * sigmoid(gate[i]) * up[i]);
}

TEST(Activation, GeluBackwardAgreesWithFiniteDifferences) {
  auto x = wide_values(19, 1);
  const auto d_y = some_values(19, 2);
  std::vector<double> y(19), d_x(19);

  gelu_backward(19, x.data(), d_y.data(), d_x.data());

  expect_gradient(
      x, d_x,
      [&] {
        gelu_forward(19, x.data(), y.data());
        return weighted_sum(y, d_y);
      },
      "x");
}

TEST(Activation, SwigluBackwardAgreesWithFiniteDifferences) {
  auto gate = wide_values(19, 1), up = wide_values(19, 2);
  const auto d_y = some_values(19, 3);
  std::vector<double> y(19), d_gate(19), d_up(19);
  const auto objective = [&] {
    swiglu_forward(19, gate.data(), up.data(), y.data());
    return weighted_sum(y, d_y);
  };

  swiglu_backward(19, gate.data(), up.data(), d_y.data(), d_gate.data(), d_up.data());

  expect_gradient(gate, d_gate, objective, "gate");
  expect_gradient(up, d_up, objective, "up");
}

}  // namespace
}  // namespace troupe::apps::gpt
