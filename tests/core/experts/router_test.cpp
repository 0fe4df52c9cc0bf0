#include "core/experts/router.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/core/experts/some_logits.hpp"

namespace troupe::core {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

template <class T>
struct Routed {
  std::vector<std::int32_t> experts;
  std::vector<T> weights;
};

template <class T>
Routed<T> routed(const RouterOptions& options, std::span<const T> logits, std::span<const T> bias = {}) {
  const std::size_t count = logits.size() / options.experts * options.choices;
  Routed<T> result{std::vector<std::int32_t>(count), std::vector<T>(count)};
  route<T>(options, logits, bias, {result.experts, result.weights});
  return result;
}

void expect_weights(std::span<const double> found, const std::vector<double>& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(found[i], wanted[i], 1e-14) << i;
}

TEST(Router, SoftmaxBeforeTheChoiceWeighsByAllExperts) {
  const auto found = routed<double>({.experts = 8}, some_logits<double>(4));

  EXPECT_THAT(found.experts, ElementsAre(3, 6, 1, 3, 0, 3, 2, 3));
  expect_weights(found.weights,
                 {0.44397154641666703, 0.26928235494173913, 0.30821909080565774, 0.24004126927700267,
                  0.3326533780948125, 0.2590707113515881, 0.508045924241021, 0.23998390186785382});
}

TEST(Router, NormalisedWeightsSumToOne) {
  const auto found = routed<double>({.experts = 8, .normalise = true}, some_logits<double>(4));

  expect_weights(found.weights,
                 {0.6224593312018546, 0.37754066879814546, 0.5621765008857981, 0.4378234991142019,
                  0.5621765008857981, 0.4378234991142019, 0.679178699175393, 0.320821300824607});
}

TEST(Router, SoftmaxAfterTheChoiceWeighsByTheChosen) {
  const auto found =
      routed<double>({.experts = 8, .score_before_choice = false, .scale = 2.5}, some_logits<double>(4));

  EXPECT_THAT(found.experts, ElementsAre(3, 6, 1, 3, 0, 3, 2, 3));
  expect_weights(found.weights,
                 {1.5561483280046364, 0.9438516719953637, 1.4054412522144952, 1.0945587477855048,
                  1.4054412522144952, 1.0945587477855048, 1.6979467479384824, 0.8020532520615175});
}

TEST(Router, BiasChangesTheChoiceOfSigmoidsAndNoWeight) {
  const std::vector<double> bias = {0.5, -0.5, 0, 0, 0.25, 0, 0, -0.25};
  const RouterOptions options{.experts = 8, .score = ScoreFunction::sigmoid, .normalise = true, .scale = 1.5};

  const auto found = routed<double>(options, some_logits<double>(4), bias);

  EXPECT_THAT(found.experts, ElementsAre(3, 6, 0, 3, 0, 3, 2, 4));
  expect_weights(found.weights,
                 {0.7843652687283043, 0.7156347312716959, 0.5231291284425243, 0.9768708715574759,
                  0.7689393988958757, 0.7310606011041242, 0.9036862473419136, 0.5963137526580864});
}

TEST(Router, GroupThatIsNotChosenHasNoChosenExpert) {
  const RouterOptions options{.experts = 8,
                              .choices = 4,
                              .score = ScoreFunction::sigmoid,
                              .normalise = true,
                              .groups = 4,
                              .chosen_groups = 2};

  const auto found = routed<double>(options, some_logits<double>(4));

  // Without groups the first token would choose 3, 6, 2, 5.
  EXPECT_THAT(found.experts, ElementsAre(3, 6, 2, 7, 1, 3, 0, 2, 0, 6, 1, 7, 2, 3, 4, 5));
  EXPECT_NEAR(found.weights[0], 0.3550159552153227, 1e-14);
  EXPECT_NEAR(found.weights[15], 0.1496556848163088, 1e-14);
}

TEST(Router, OfEqualExpertsAndGroupsTheFirstIsChosen) {
  const std::vector<float> equal(6, 0.25F);
  EXPECT_THAT(routed<float>({.experts = 6, .choices = 3}, equal).experts, ElementsAre(0, 1, 2));
  EXPECT_THAT(routed<float>({.experts = 6, .groups = 3, .chosen_groups = 1}, equal).experts,
              ElementsAre(0, 1));
  const std::vector<float> pairs = {1, 2, 1, 2};
  EXPECT_THAT(routed<float>({.experts = 4, .choices = 3}, pairs).experts, ElementsAre(1, 3, 0));
}

TEST(Router, WhatIsNoNumberIsChosenByItsPlace) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> logits = {1, nan, 3, nan, nan, nan, nan, nan};

  const auto found = routed<float>({.experts = 4, .score_before_choice = false}, logits);

  EXPECT_THAT(found.experts, ElementsAre(2, 0, 0, 1));
}

TEST(Router, ATokensBitsDoNotDependOnTheOthers) {
  const auto all = some_logits<float>(33);
  for (const RouterOptions& options :
       {RouterOptions{.experts = 8, .normalise = true},
        RouterOptions{.experts = 8, .score_before_choice = false},
        RouterOptions{.experts = 8, .score = ScoreFunction::sigmoid, .normalise = true, .scale = 2.5}}) {
    const auto together = routed<float>(options, all);
    for (std::size_t token = 0; token < 33; ++token) {
      const auto alone = routed<float>(options, std::span(all).subspan(token * 8, 8));
      EXPECT_EQ(alone.experts[1], together.experts[2 * token + 1]);
      EXPECT_EQ(alone.weights[0], together.weights[2 * token]);
      EXPECT_EQ(alone.weights[1], together.weights[2 * token + 1]);
    }
  }
}

TEST(Router, GradientsAgreeWithFiniteDifferences) {
  for (const RouterOptions& options :
       {RouterOptions{.experts = 8}, RouterOptions{.experts = 8, .normalise = true, .scale = 3},
        RouterOptions{.experts = 8, .choices = 3, .score_before_choice = false, .scale = 2},
        RouterOptions{.experts = 8, .choices = 3, .score = ScoreFunction::sigmoid},
        RouterOptions{.experts = 8, .score = ScoreFunction::sigmoid, .normalise = true, .scale = 2.5},
        RouterOptions{.experts = 8, .choices = 4, .normalise = true, .groups = 4, .chosen_groups = 2}}) {
    auto logits = some_logits<double>(4);
    const auto chosen = routed<double>(options, logits);
    std::vector<double> d_weights;
    for (std::size_t i = 0; i < chosen.weights.size(); ++i)
      d_weights.push_back(static_cast<double>(i * 7 % 5) - 1.5);
    std::vector<double> d_logits(logits.size());

    route_backward<double>(options, logits, chosen.experts, d_weights, d_logits);

    expect_gradient(logits, d_logits, [&] {
      const auto now = routed<double>(options, logits);
      double sum = 0;
      for (std::size_t i = 0; i < d_weights.size(); ++i) sum += now.weights[i] * d_weights[i];
      return sum;
    });
  }
}

TEST(Router, RefusesWhatCannotBe) {
  const auto error = [](const RouterOptions& options) { return validate(options).error().message; };

  EXPECT_TRUE(validate({.experts = 8, .choices = 4, .groups = 4, .chosen_groups = 2}));
  EXPECT_THAT(error({}), HasSubstr("experts must lie in 1..65536, found 0"));
  EXPECT_THAT(error({.experts = 4, .choices = 5}), HasSubstr("must choose 1..4 experts, found 5"));
  EXPECT_THAT(error({.experts = 4, .scale = 0}), HasSubstr("must be above 0"));
  EXPECT_THAT(error({.experts = 8, .groups = 3}), HasSubstr("must divide the 8 experts, found 3"));
  EXPECT_THAT(error({.experts = 8, .groups = 4, .chosen_groups = 5}), HasSubstr("1..4 groups, found 5"));
  EXPECT_THAT(error({.experts = 8, .choices = 3, .groups = 4, .chosen_groups = 2}),
              HasSubstr("3 choices from 2 groups of 2 experts are not possible"));
  EXPECT_THAT(error({.experts = 8, .choices = 4, .groups = 4, .chosen_groups = 1}),
              HasSubstr("4 choices from 1 groups of 2 experts are not possible"));
}

}  // namespace
}  // namespace troupe::core
