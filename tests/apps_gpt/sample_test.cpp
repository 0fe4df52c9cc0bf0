#include "apps/gpt/text/sample.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/errors.hpp"
#include "tests/apps_gpt/tensors.hpp"
#include "tests/apps_gpt/typed_model.hpp"

namespace troupe::apps::gpt {
namespace {

const std::vector<float> kLogits = {std::log(1.0F), std::log(5.0F), std::log(3.0F), std::log(1.0F)};

TEST(SampleToken, ChoosesByCumulativeProbabilityFromTheLikeliest) {
  const SamplingOptions options{.temperature = 1, .top_k = 0};

  EXPECT_EQ(sample_token(kLogits, options, 0.0), 1);
  EXPECT_EQ(sample_token(kLogits, options, 0.49), 1);
  EXPECT_EQ(sample_token(kLogits, options, 0.51), 2);
  EXPECT_EQ(sample_token(kLogits, options, 0.79), 2);
  EXPECT_EQ(sample_token(kLogits, options, 0.81), 0);
  EXPECT_EQ(sample_token(kLogits, options, 0.91), 3);
  EXPECT_EQ(sample_token(kLogits, options, std::nextafter(1.0, 0.0)), 3);
}

TEST(SampleToken, TopKLeavesOutTheRest) {
  const SamplingOptions options{.temperature = 1, .top_k = 2};

  EXPECT_EQ(sample_token(kLogits, options, 0.624), 1);
  EXPECT_EQ(sample_token(kLogits, options, 0.626), 2);
  EXPECT_EQ(sample_token(kLogits, options, 0.999), 2);
}

TEST(SampleToken, TemperatureSharpensDownToTheLikeliest) {
  // At temperature 1/2 the odds are squared: 25 to 9 to 1 to 1.
  EXPECT_EQ(sample_token(kLogits, {.temperature = 0.5, .top_k = 0}, 0.69), 1);
  EXPECT_EQ(sample_token(kLogits, {.temperature = 0.5, .top_k = 0}, 0.70), 2);
  EXPECT_EQ(sample_token(kLogits, {.temperature = 0}, 0.999), 1);
}

/// Continues a prompt of bytes.
core::Result<std::string> sample_text(Model& model, Model::Parameters parameters, std::string_view prompt,
                                      std::size_t bytes, const SamplingOptions& options) {
  TextCodec codec;
  auto window = TRY(encode_prompt(prompt, model.config().vocabulary, codec));
  return gpt::sample_text(
      [&](std::span<const std::int32_t> tokens) { return model.logits(parameters, tokens); },
      model.shape().length, std::move(window), bytes, options, codec);
}

class SampleText : public testing::Test {
 protected:
  core::Result<std::string> sample(std::string_view prompt, std::uint64_t seed) {
    return sample_text(model_, values_.constant(), prompt, 40, {.seed = seed});
  }

  Model model_ = Model::create(preset("tiny").value(), {.batch = 1, .length = 16}).value();
  Tensors<float> values_ = initial_parameters(model_.table().specs, 1);
};

TEST_F(SampleText, HasTheLengthAskedForAndDependsOnSeed) {
  const std::string text = sample("And ", 3).value();

  EXPECT_EQ(text.size(), 40U);
  EXPECT_EQ(text, sample("And ", 3).value());
  EXPECT_NE(text, sample("And ", 4).value());
}

TEST_F(SampleText, ReadsTheEndOfAnOverlongPrompt) {
  EXPECT_EQ(sample("0123456789abcdefghij", 3).value(), sample("456789abcdefghij", 3).value());
}

TEST_F(SampleText, WithoutAPromptIsAnError) {
  EXPECT_FALSE(sample("", 3));
}

TEST_F(SampleText, ContinuesTheLastTokenWhereContextIsOne) {
  auto model = Model::create(preset("tiny").value(), {.batch = 1, .length = 1}).value();

  const auto text = sample_text(model, values_.constant(), "And ", 3, {.seed = 3});

  ASSERT_TRUE(text) << text.error().message;
  EXPECT_EQ(text->size(), 3U);
  EXPECT_EQ(*text, sample_text(model, values_.constant(), " ", 3, {.seed = 3}).value());
}

TEST(EncodePrompt, RefusesATokenThatTheModelDoesNotKnow) {
  TextCodec codec;

  EXPECT_THAT(encode_prompt("abc", 'c' + 1, codec).value(), testing::ElementsAre('a', 'b', 'c'));
  const auto refused = encode_prompt("abc", 'c', codec);

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, core::Errc::invalid_argument);
  EXPECT_THAT(refused.error().message, testing::HasSubstr("the prompt has the token 99"));
}

TEST(SampleTokens, NeverReadNoneOrMoreThanTheLength) {
  const std::vector<float> logits = {0, 1};
  for (const std::size_t length : {1, 2, 3, 4}) {
    std::vector<std::size_t> read;
    const auto next = [&](std::span<const std::int32_t> tokens) -> core::Result<std::span<const float>> {
      read.push_back(tokens.size());
      return std::span(logits);
    };

    const auto tokens = sample_tokens(next, length, {0, 1, 0}, 6, {}, [](std::int32_t) { return false; });

    ASSERT_TRUE(tokens);
    EXPECT_EQ(tokens->size(), 6U);
    EXPECT_THAT(read, testing::Each(testing::AllOf(testing::Ge(1U), testing::Le(length))));
  }
}

}  // namespace
}  // namespace troupe::apps::gpt
