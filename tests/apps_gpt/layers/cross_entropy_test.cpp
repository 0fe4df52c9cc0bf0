#include "apps/gpt/layers/cross_entropy.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/apps_gpt/gradient_check.hpp"

namespace troupe::apps::gpt {
namespace {

TEST(CrossEntropy, OfEqualLogitsIsTheLogarithmOfTheirCount) {
  const std::vector<std::int32_t> targets = {0, 4};
  std::vector<double> logits(10, 3.5);

  EXPECT_DOUBLE_EQ(cross_entropy_forward(targets, 5, logits.data()), std::log(5.0));
}

TEST(CrossEntropy, IsTheMeanNegativeLogProbabilityOfTheTargets) {
  const std::vector<std::int32_t> targets = {1, 0};
  std::vector<double> logits = {0, std::log(3.0), std::log(4.0), 0};

  EXPECT_NEAR(cross_entropy_forward(targets, 2, logits.data()), -(std::log(0.75) + std::log(0.8)) / 2, 1e-15);
}

TEST(CrossEntropy, IsTheMeanOfTheRowsThatAreLearned) {
  const std::vector<std::int32_t> targets = {1, kNoTarget, 0}, none = {kNoTarget, kNoTarget};
  std::vector<double> logits = {0, std::log(3.0), 7, -7, std::log(4.0), 0};
  std::vector<double> others = {1, 2, 3, 4};

  EXPECT_NEAR(cross_entropy_forward(targets, 2, logits.data()), -(std::log(0.75) + std::log(0.8)) / 2, 1e-15);
  EXPECT_EQ(cross_entropy_forward(none, 2, others.data()), 0);
  cross_entropy_backward(none, 2, others.data());
  EXPECT_EQ(others, std::vector<double>(4));
}

TEST(CrossEntropy, BackwardAgreesWithFiniteDifferences) {
  constexpr std::size_t kVocabulary = 18;
  const std::vector<std::int32_t> targets = {3, kNoTarget, 0};
  auto logits = some_values(3 * kVocabulary, 1);
  auto gradient = logits;

  cross_entropy_forward(targets, kVocabulary, gradient.data());
  cross_entropy_backward(targets, kVocabulary, gradient.data());

  expect_gradient(
      logits, gradient,
      [&] {
        auto copy = logits;
        return cross_entropy_forward(targets, kVocabulary, copy.data());
      },
      "logits");
}

TEST(CrossEntropy, OfASumOverADivisorIsTheMeanTimesTheShareOfLearnedRows) {
  const std::vector<std::int32_t> targets = {3, kNoTarget, 0};
  auto mean = some_values(3 * 18, 1);
  auto sum = mean;

  const double loss = cross_entropy_forward(targets, 18, mean.data());
  EXPECT_DOUBLE_EQ(cross_entropy_forward(targets, 18, sum.data(), 8), loss * 2 / 8);
  cross_entropy_backward(targets, 18, mean.data());
  cross_entropy_backward(targets, 18, sum.data(), 1.0, 8);

  for (std::size_t i = 0; i < sum.size(); ++i) EXPECT_DOUBLE_EQ(sum[i], mean[i] * 2 / 8);
}

TEST(CrossEntropy, BackwardScalesTheGradientAndNotTheLoss) {
  const std::vector<std::int32_t> targets = {3, kNoTarget, 0};
  auto once = some_values(3 * 18, 1);
  cross_entropy_forward(targets, 18, once.data());
  auto scaled = once;

  cross_entropy_backward(targets, 18, once.data());
  cross_entropy_backward(targets, 18, scaled.data(), 1024.0);

  for (double& value : once) value *= 1024;
  EXPECT_EQ(scaled, once);
}

TEST(CrossEntropy, OfLogitsFarApartStaysFinite) {
  const std::vector<std::int32_t> targets = {1};
  std::vector<float> logits = {3000, -3000};

  EXPECT_FLOAT_EQ(static_cast<float>(cross_entropy_forward<float>(targets, 2, logits.data())), 6000);
}

}  // namespace
}  // namespace troupe::apps::gpt
