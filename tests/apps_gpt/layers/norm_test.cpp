#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "apps/gpt/layers/layer_norm.hpp"
#include "apps/gpt/layers/rms_norm.hpp"
#include "tests/apps_gpt/gradient_check.hpp"

namespace troupe::apps::gpt {
namespace {

constexpr std::size_t kRows = 3, kWidth = 21;  // not a multiple of the ways in which sums are taken

TEST(RmsNorm, DividesByTheRootOfTheMeanSquare) {
  const std::vector<double> x = {3, 4, 0, 0}, weight = {1, 2, 3, 4};
  std::vector<double> y(4), scale(1);

  rms_norm_forward<double>({1, 4, 0.0, x.data(), weight.data(), scale.data()}, y.data());

  EXPECT_DOUBLE_EQ(y[0], 3 / 2.5);
  EXPECT_DOUBLE_EQ(y[1], 2 * 4 / 2.5);
  EXPECT_EQ(y[2], 0);
}

TEST(RmsNorm, BackwardAgreesWithFiniteDifferences) {
  auto x = some_values(kRows * kWidth, 1), weight = some_values(kWidth, 2);
  const auto d_y = some_values(kRows * kWidth, 3);
  std::vector<double> y(x.size()), scale(kRows), d_x(x.size()), d_weight(kWidth);
  const auto objective = [&] {
    rms_norm_forward<double>({kRows, kWidth, 1e-3, x.data(), weight.data(), scale.data()}, y.data());
    return weighted_sum(y, d_y);
  };

  objective();
  const RmsNorm<double> norm{kRows, kWidth, 1e-3, x.data(), weight.data(), scale.data()};
  rms_norm_backward_input(norm, d_y.data(), d_x.data(), Write::accumulate);
  rms_norm_backward_weight(norm, d_y.data(), d_weight.data());

  expect_gradient(x, d_x, objective, "x");
  expect_gradient(weight, d_weight, objective, "weight");
}

TEST(LayerNorm, CentresAndDividesByTheDeviation) {
  const std::vector<double> x = {1, 3, 5, 7}, weight = {1, 1, 2, 1}, bias = {0, 0, 0, 10};
  std::vector<double> y(4), mean(1), scale(1);

  layer_norm_forward<double>({1, 4, 0.0, x.data(), weight.data(), bias.data(), mean.data(), scale.data()},
                             y.data());

  const double deviation = std::sqrt(5.0);
  EXPECT_DOUBLE_EQ(y[0], -3 / deviation);
  EXPECT_DOUBLE_EQ(y[2], 2 * (1 / deviation));
  EXPECT_DOUBLE_EQ(y[3], 3 / deviation + 10);
}

TEST(LayerNorm, BackwardAgreesWithFiniteDifferences) {
  auto x = some_values(kRows * kWidth, 1), weight = some_values(kWidth, 2), bias = some_values(kWidth, 4);
  const auto d_y = some_values(kRows * kWidth, 3);
  std::vector<double> y(x.size()), mean(kRows), scale(kRows), d_x(x.size()), d_weight(kWidth), d_bias(kWidth);
  const auto norm = [&] {
    return LayerNorm<double>{kRows,         kWidth,      1e-3,        x.data(),
                             weight.data(), bias.data(), mean.data(), scale.data()};
  };
  const auto objective = [&] {
    layer_norm_forward(norm(), y.data());
    return weighted_sum(y, d_y);
  };

  objective();
  layer_norm_backward_input(norm(), d_y.data(), d_x.data(), Write::accumulate);
  layer_norm_backward_weight(norm(), d_y.data(), d_weight.data(), d_bias.data());

  expect_gradient(x, d_x, objective, "x");
  expect_gradient(weight, d_weight, objective, "weight");
  expect_gradient(bias, d_bias, objective, "bias");
}

TEST(Norms, AddToTheGradientsTheyFind) {
  const std::vector<double> x = {1, 2}, weight = {1, 1}, d_y = {1, 0};
  std::vector<double> y(2), mean(1), scale(1), d_x(2), d_x_added = {5, 6}, d_w(2), d_w_added = {7, 8};
  std::vector<double> d_x_in_place = d_y;

  const RmsNorm<double> norm{1, 2, 0.1, x.data(), weight.data(), scale.data()};
  rms_norm_forward(norm, y.data());
  rms_norm_backward_input(norm, d_y.data(), d_x.data(), Write::accumulate);
  rms_norm_backward_input(norm, d_y.data(), d_x_added.data(), Write::accumulate);
  rms_norm_backward_input(norm, d_y.data(), d_x_in_place.data(), Write::overwrite);
  rms_norm_backward_weight(norm, d_y.data(), d_w.data());
  rms_norm_backward_weight(norm, d_y.data(), d_w_added.data());

  EXPECT_DOUBLE_EQ(d_x_added[1], 6 + d_x[1]);
  EXPECT_EQ(d_x_in_place, d_x);
  EXPECT_DOUBLE_EQ(d_w_added[0], 7 + d_w[0]);
}

}  // namespace
}  // namespace troupe::apps::gpt
