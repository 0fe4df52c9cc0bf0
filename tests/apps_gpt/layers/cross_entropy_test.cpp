#include "apps/gpt/model/vocabulary.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <vector>

#include "apps/gpt/layers/cross_entropy.hpp"
#include "tests/apps_gpt/gradient_check.hpp"

namespace troupe::apps::gpt {
namespace {

/// On the only member.
template <class T>
double forward(const std::vector<std::int32_t>& targets, std::size_t vocabulary, T* logits,
               std::optional<std::size_t> divisor = {}) {
  return cross_entropy_forward<T>(nullptr, targets, vocabulary, logits, divisor).value();
}

void backward(const std::vector<std::int32_t>& targets, std::size_t vocabulary, double* probabilities,
              double scale = 1, std::optional<std::size_t> divisor = {}) {
  cross_entropy_backward(targets, 0, vocabulary, probabilities, scale, divisor);
}

TEST(CrossEntropy, OfEqualLogitsIsTheLogarithmOfTheirCount) {
  const std::vector<std::int32_t> targets = {0, 4};
  std::vector<double> logits(10, 3.5);

  EXPECT_DOUBLE_EQ(forward(targets, 5, logits.data()), std::log(5.0));
}

TEST(CrossEntropy, IsTheMeanNegativeLogProbabilityOfTheTargets) {
  const std::vector<std::int32_t> targets = {1, 0};
  std::vector<double> logits = {0, std::log(3.0), std::log(4.0), 0};

  EXPECT_NEAR(forward(targets, 2, logits.data()), -(std::log(0.75) + std::log(0.8)) / 2, 1e-15);
}

TEST(CrossEntropy, IsTheMeanOfTheRowsThatAreLearned) {
  const std::vector<std::int32_t> targets = {1, kNoTarget, 0}, none = {kNoTarget, kNoTarget};
  std::vector<double> logits = {0, std::log(3.0), 7, -7, std::log(4.0), 0};
  std::vector<double> others = {1, 2, 3, 4};

  EXPECT_NEAR(forward(targets, 2, logits.data()), -(std::log(0.75) + std::log(0.8)) / 2, 1e-15);
  EXPECT_EQ(forward(none, 2, others.data()), 0);
  backward(none, 2, others.data());
  EXPECT_EQ(others, std::vector<double>(4));
}

TEST(CrossEntropy, BackwardAgreesWithFiniteDifferences) {
  constexpr std::size_t kVocabulary = 18;
  const std::vector<std::int32_t> targets = {3, kNoTarget, 0};
  auto logits = some_values(3 * kVocabulary, 1);
  auto gradient = logits;

  forward(targets, kVocabulary, gradient.data());
  backward(targets, kVocabulary, gradient.data());

  expect_gradient(
      logits, gradient,
      [&] {
        auto copy = logits;
        return forward(targets, kVocabulary, copy.data());
      },
      "logits");
}

TEST(CrossEntropy, OverADivisorScalesTheMeanByLearnedRows) {
  const std::vector<std::int32_t> targets = {3, kNoTarget, 0};
  auto mean = some_values(3 * 18, 1);
  auto sum = mean;

  const double loss = forward(targets, 18, mean.data());
  EXPECT_DOUBLE_EQ(forward(targets, 18, sum.data(), 8), loss * 2 / 8);
  backward(targets, 18, mean.data());
  backward(targets, 18, sum.data(), 1.0, 8);

  for (std::size_t i = 0; i < sum.size(); ++i) EXPECT_DOUBLE_EQ(sum[i], mean[i] * 2 / 8);
}

TEST(CrossEntropy, BackwardScalesTheGradientAndNotTheLoss) {
  const std::vector<std::int32_t> targets = {3, kNoTarget, 0};
  auto once = some_values(3 * 18, 1);
  forward(targets, 18, once.data());
  auto scaled = once;

  backward(targets, 18, once.data());
  backward(targets, 18, scaled.data(), 1024.0);

  for (double& value : once) value *= 1024;
  EXPECT_EQ(scaled, once);
}

TEST(CrossEntropy, OfLogitsFarApartStaysFinite) {
  const std::vector<std::int32_t> targets = {1};
  std::vector<float> logits = {3000, -3000};

  EXPECT_FLOAT_EQ(static_cast<float>(forward(targets, 2, logits.data())), 6000);
}

}  // namespace
}  // namespace troupe::apps::gpt
