#include "apps/gpt/layers/attention.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/apps_gpt/gradient_check.hpp"

namespace troupe::apps::gpt {
namespace {

// Four heads: each has keys of its own, or two share them, or all do.
class AttentionOfKeyHeads : public testing::TestWithParam<std::size_t> {
 protected:
  static constexpr std::size_t kLength = 5, kHeads = 4, kSize = 4, kElements = 2 * kLength * kHeads * kSize;

  Attention<double> attention() {
    return {{.batch = 2, .length = kLength, .heads = kHeads, .head_size = kSize, .key_heads = key_heads_},
            query_.data(),
            key_.data(),
            value_.data(),
            probabilities_.data()};
  }

  // The definition, term by term.
  double attend(std::size_t b, std::size_t t, std::size_t h, std::size_t d) const {
    const std::size_t k = h * key_heads_ / kHeads;
    const auto at = [=, this](std::size_t position, std::size_t i) {
      return ((b * kLength + position) * key_heads_ + k) * kSize + i;
    };
    const double* query = query_.data() + ((b * kLength + t) * kHeads + h) * kSize;
    double sum = 0, total = 0;
    for (std::size_t s = 0; s <= t; ++s) {
      double score = 0;
      for (std::size_t i = 0; i < kSize; ++i) score += query[i] * key_[at(s, i)];
      const double weight = std::exp(score / std::sqrt(4.0));
      total += weight;
      sum += weight * value_[at(s, d)];
    }
    return sum / total;
  }

  std::size_t key_heads_ = GetParam();
  std::vector<double> query_ = some_values(kElements, 1);
  std::vector<double> key_ = some_values(kElements / kHeads * key_heads_, 2);
  std::vector<double> value_ = some_values(kElements / kHeads * key_heads_, 3);
  std::vector<double> probabilities_ = std::vector<double>(2 * kHeads * kLength * kLength);
};

INSTANTIATE_TEST_SUITE_P(OfFour, AttentionOfKeyHeads, testing::Values(4, 2, 1));

TEST_P(AttentionOfKeyHeads, IsTheSoftmaxWeightedMeanOfEarlierValues) {
  std::vector<double> y(kElements);

  attention_forward(attention(), y.data());

  for (std::size_t i = 0; i < kElements; ++i) {
    EXPECT_NEAR(y[i], attend(i / 80, i / 16 % 5, i / 4 % 4, i % 4), 1e-14) << i;
  }
}

TEST_P(AttentionOfKeyHeads, BackwardAgreesWithFiniteDifferences) {
  const auto d_y = some_values(kElements, 4);
  // What was there before is overwritten.
  std::vector<double> y(kElements), d_query(kElements, 9), d_key(key_.size(), 9), d_value(key_.size(), 9),
      scratch(25);
  const auto objective = [&] {
    attention_forward(attention(), y.data());
    return weighted_sum(y, d_y);
  };

  objective();
  attention_backward(attention(), d_y.data(), {d_query.data(), d_key.data(), d_value.data(), scratch.data()});

  expect_gradient(query_, d_query, objective, "query");
  expect_gradient(key_, d_key, objective, "key");
  expect_gradient(value_, d_value, objective, "value");
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
