#include "apps/gpt/layers/attention.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/apps_gpt/gradient_check.hpp"

namespace troupe::apps::gpt {
namespace {

constexpr AttentionShape kShape{.batch = 2, .length = 5, .heads = 3, .head_size = 4};
constexpr std::size_t kElements = 2 * 5 * 3 * 4;

struct Inputs {
  std::vector<double> query = some_values(kElements, 1);
  std::vector<double> key = some_values(kElements, 2);
  std::vector<double> value = some_values(kElements, 3);
  std::vector<double> probabilities = std::vector<double>(2 * 3 * 5 * 5);

  Attention<double> attention() {
    return {kShape, query.data(), key.data(), value.data(), probabilities.data()};
  }
};

// The definition, term by term.
double attend(const Inputs& in, std::size_t b, std::size_t t, std::size_t h, std::size_t d) {
  const auto at = [=](std::size_t position, std::size_t i) {
    return ((b * kShape.length + position) * kShape.heads + h) * kShape.head_size + i;
  };
  double sum = 0, total = 0;
  for (std::size_t s = 0; s <= t; ++s) {
    double score = 0;
    for (std::size_t i = 0; i < kShape.head_size; ++i) score += in.query[at(t, i)] * in.key[at(s, i)];
    const double weight = std::exp(score / std::sqrt(4.0));
    total += weight;
    sum += weight * in.value[at(s, d)];
  }
  return sum / total;
}

TEST(Attention, IsTheSoftmaxWeightedMeanOfTheValuesSoFar) {
  Inputs in;
  std::vector<double> y(kElements);

  attention_forward(in.attention(), y.data());

  for (std::size_t i = 0; i < kElements; ++i) {
    EXPECT_NEAR(y[i], attend(in, i / 60, i / 12 % 5, i / 4 % 3, i % 4), 1e-14) << i;
  }
}

TEST(Attention, BackwardAgreesWithFiniteDifferences) {
  Inputs in;
  const auto d_y = some_values(kElements, 4);
  std::vector<double> y(kElements), d_query(kElements), d_key(kElements), d_value(kElements), scratch(25);
  const auto objective = [&] {
    attention_forward(in.attention(), y.data());
    return weighted_sum(y, d_y);
  };

  objective();
  attention_backward(in.attention(), d_y.data(),
                     {d_query.data(), d_key.data(), d_value.data(), scratch.data()});

  expect_gradient(in.query, d_query, objective, "query");
  expect_gradient(in.key, d_key, objective, "key");
  expect_gradient(in.value, d_value, objective, "value");
}

TEST(Attention, KeepsLargeScoresFinite) {
  const std::vector<float> query = {200, 200}, key = {200, -200}, value = {1, 2};
  std::vector<float> probabilities(4), y(2);

  attention_forward<float>({{1, 2, 1, 1}, query.data(), key.data(), value.data(), probabilities.data()},
                           y.data());

  EXPECT_EQ(y, (std::vector<float>{1, 1}));
}

}  // namespace
}  // namespace troupe::apps::gpt
