#include "apps/gpt/text/perplexity.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "apps/gpt/layers/cross_entropy.hpp"

namespace troupe::apps::gpt {
namespace {

/// The loss of a token is its number.
core::Result<double> mean_target(std::span<const std::int32_t>, std::span<const std::int32_t> targets) {
  double sum = 0, count = 0;
  for (const std::int32_t target : targets) {
    if (target == kNoTarget) continue;
    sum += target;
    count += 1;
  }
  return sum / count;
}

TEST(Perplexity, WeighsEveryTokenAlike) {
  // The last microbatch has fewer tokens than the others.
  const std::vector<std::uint8_t> text = {9, 1, 2, 3, 4, 5, 6, 7, 8, 2};

  const auto result = perplexity(text, {.batch = 2, .length = 2}, mean_target).value();

  EXPECT_EQ(result.tokens, 9U);
  EXPECT_DOUBLE_EQ(result.loss, 38.0 / 9);
  EXPECT_DOUBLE_EQ(result.perplexity, std::exp(38.0 / 9));
}

TEST(Perplexity, OfRowsLeavesOutWhatIsNotLearned) {
  const std::vector<std::int32_t> rows = {~1, 2, ~3, ~4, 5, 6, ~7, ~8, ~9};

  const auto result = perplexity({rows, 3}, {.batch = 1, .length = 2}, mean_target).value();

  EXPECT_EQ(result.tokens, 3U);
  EXPECT_DOUBLE_EQ(result.loss, 13.0 / 3);
}

TEST(Perplexity, OfNothingIsAnError) {
  const std::vector<std::int32_t> rows = {~1, ~2};

  EXPECT_FALSE(perplexity({rows, 2}, {.batch = 1, .length = 1}, mean_target));
}

}  // namespace
}  // namespace troupe::apps::gpt
