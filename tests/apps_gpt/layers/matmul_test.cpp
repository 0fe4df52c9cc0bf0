#include "apps/gpt/layers/matmul.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "tests/apps_gpt/gradient_check.hpp"

namespace troupe::apps::gpt {
namespace {

constexpr LinearShape kLinear{.rows = 3, .in = 5, .out = 4};

TEST(Linear, MultipliesByTheTransposedWeight) {
  const std::vector<float> x = {1, 2, 3, 4};             // (2, 2)
  const std::vector<float> weight = {1, 0, 0, 1, 5, 7};  // (3, 2)
  std::vector<float> y(6, 100);

  linear_forward<float>({2, 2, 3}, x.data(), weight.data(), y.data());

  EXPECT_EQ(y, (std::vector<float>{1, 2, 19, 3, 4, 43}));
}

TEST(Linear, AccumulatesWhenAsked) {
  const std::vector<float> x = {1, 2}, weight = {3, 4};
  std::vector<float> y = {100}, d_x = {10, 20}, d_weight = {30, 40};
  const std::vector<float> d_y = {2};

  linear_forward<float>({1, 2, 1}, x.data(), weight.data(), y.data(), Write::accumulate);
  linear_backward_input<float>({1, 2, 1}, d_y.data(), weight.data(), d_x.data(), Write::accumulate);
  linear_backward_weight<float>({1, 2, 1}, d_y.data(), x.data(), d_weight.data());

  EXPECT_EQ(y, (std::vector<float>{111}));
  EXPECT_EQ(d_x, (std::vector<float>{16, 28}));
  EXPECT_EQ(d_weight, (std::vector<float>{32, 44}));
}

TEST(Linear, BackwardAgreesWithFiniteDifferences) {
  auto x = some_values(15, 1), weight = some_values(20, 2);
  const auto d_y = some_values(12, 3);
  std::vector<double> d_x(15), d_weight(20);

  linear_backward_input(kLinear, d_y.data(), weight.data(), d_x.data());
  linear_backward_weight(kLinear, d_y.data(), x.data(), d_weight.data());

  const auto objective = [&] {
    std::vector<double> y(12);
    linear_forward(kLinear, x.data(), weight.data(), y.data());
    return weighted_sum(y, d_y);
  };
  expect_gradient(x, d_x, objective, "x");
  expect_gradient(weight, d_weight, objective, "weight");
}

}  // namespace
}  // namespace troupe::apps::gpt
