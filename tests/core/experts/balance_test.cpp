#include "core/experts/balance.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/experts/some_logits.hpp"

namespace troupe::core {
namespace {

using testing::ElementsAre;

template <class T>
std::vector<std::int32_t> chosen_experts(const RouterOptions& options, std::span<const T> logits) {
  std::vector<std::int32_t> experts(logits.size() / options.experts * options.choices);
  std::vector<T> weights(experts.size());
  route<T>(options, logits, {}, {experts, weights});
  return experts;
}

template <class T>
ExpertLoad load_of(const RouterOptions& options, std::span<const T> logits) {
  return expert_load<T>(options, logits, chosen_experts<T>(options, logits));
}

// Golden values as in some_logits(): c = bincount(choice), E * sum(c / (N K) * mean(scores)), and
// mean(log(sum(exp(x)))^2).
TEST(Balance, LossesAreThoseOfTheReference) {
  const RouterOptions softmax{.experts = 8};
  const RouterOptions sigmoid{.experts = 8, .score = ScoreFunction::sigmoid, .normalise = true};
  const auto logits = some_logits<double>(4);

  EXPECT_THAT(load_of<double>(softmax, logits).counts, ElementsAre(1, 1, 1, 4, 0, 0, 1, 0));
  EXPECT_NEAR(balance_loss(softmax, load_of<double>(softmax, logits)), 1.6960307971368558, 1e-14);
  EXPECT_NEAR(balance_loss(sigmoid, load_of<double>(sigmoid, logits)), 1.3248159759953084, 1e-14);
  EXPECT_NEAR(z_loss<double>(8, logits), 6.946360716209903, 1e-13);
}

TEST(Balance, IsOneWhenAllExpertsAreChosenAlike) {
  const RouterOptions options{.experts = 4, .choices = 2};
  const ExpertLoad even{{3, 3, 3, 3}, {1.5, 1.5, 1.5, 1.5}, 6};

  EXPECT_EQ(balance_loss(options, even), 1);
}

TEST(Balance, WithoutTokensThereIsNoLossAndNoGradient) {
  const RouterOptions options{.experts = 8};
  const auto load = load_of<float>(options, {});

  EXPECT_EQ(load.tokens, 0);
  EXPECT_EQ(balance_loss(options, load), 0);
  EXPECT_EQ((z_loss<float>(8, {})), 0);
  balance_backward<float>(options, {}, load, 1, {});
}

TEST(Balance, LoadsOfLanesAddUpToTheWhole) {
  const RouterOptions options{.experts = 8};
  const auto logits = some_logits<float>(9);
  const auto part = [&](std::size_t first, std::size_t count) {
    return load_of<float>(options, std::span(logits).subspan(first * 8, count * 8));
  };
  ExpertLoad sum;
  for (const auto& load : {part(0, 4), part(4, 0), part(4, 5)}) sum += load;

  const auto whole = part(0, 9);

  EXPECT_EQ(sum.tokens, 9);
  EXPECT_EQ(sum.counts, whole.counts);
  for (std::size_t e = 0; e < 8; ++e) EXPECT_NEAR(sum.score_sums[e], whole.score_sums[e], 1e-12);
}

TEST(Balance, GradientsAgreeWithFiniteDifferences) {
  for (const RouterOptions& options :
       {RouterOptions{.experts = 8},
        RouterOptions{.experts = 8, .choices = 3, .score = ScoreFunction::sigmoid, .normalise = true}}) {
    auto logits = some_logits<double>(4);
    std::vector<double> by_balance(logits.size()), by_z(logits.size());

    balance_backward<double>(options, logits, load_of<double>(options, logits), 0.7, by_balance);
    z_loss_backward<double>(8, logits, 0.3, by_z);

    expect_gradient(logits, by_balance,
                    [&] { return 0.7 * balance_loss(options, load_of<double>(options, logits)); });
    expect_gradient(logits, by_z, [&] { return 0.3 * z_loss<double>(8, logits); });
  }
}

// The reference's own case: counts 0 and 2 at a rate of a quarter.
// Covers reduce-6.
TEST(Balance, BiasRisesByTheRateWhereFewTokensWent) {
  std::vector<float> bias = {0, 0};
  update_expert_bias(bias, std::vector<std::int64_t>{0, 2}, 0.25);
  EXPECT_THAT(bias, ElementsAre(0.25F, -0.25F));

  std::vector<float> three = {1, 1, 1};
  update_expert_bias(three, std::vector<std::int64_t>{2, 3, 1}, 0.5);
  EXPECT_THAT(three, ElementsAre(1, 0.5F, 1.5F)) << "an expert that has exactly the mean stays";
  update_expert_bias(three, std::vector<std::int64_t>{0, 0, 0}, 0.5);
  EXPECT_THAT(three, ElementsAre(1, 0.5F, 1.5F));
}

}  // namespace
}  // namespace troupe::core
