#include "apps/gpt/options/expert_options.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe::apps::gpt {
namespace {

using testing::HasSubstr;

TEST(ExpertOptions, GiveAPresetExperts) {
  auto config = preset("tiny").value();

  ASSERT_TRUE(apply_expert_options({.count = 4, .choices = 3}, false, config));

  EXPECT_EQ(config.experts.count, 4U);
  EXPECT_EQ(config.experts.choices, 3U);
  EXPECT_EQ(config.experts.feed_forward, config.feed_forward);
  EXPECT_EQ(config.experts.balance, kDefaultBalance);
  EXPECT_TRUE(validate(config));
}

TEST(ExpertOptions, KeepAModelsExpertsWithoutUnaskedRouterLosses) {
  ModelConfig config = preset("tiny").value();
  config.experts = {.count = 8, .feed_forward = 5};

  ASSERT_TRUE(apply_expert_options({}, true, config));
  EXPECT_EQ(config.experts.balance, 0);
  ASSERT_TRUE(apply_expert_options({.balance = 0.02, .z_loss = 0.001, .capacity_factor = 1.5}, true, config));

  EXPECT_EQ(config.experts.count, 8U);
  EXPECT_EQ(config.experts.feed_forward, 5U);
  EXPECT_EQ(config.experts.balance, 0.02);
  EXPECT_EQ(config.experts.z_loss, 0.001);
  EXPECT_EQ(config.experts.capacity_factor, 1.5);
  EXPECT_THAT(apply_expert_options({.count = 4}, true, config).error().message,
              HasSubstr("leave out --experts 4"));
}

TEST(ExpertOptions, LossesOfRoutersWithoutRoutersAreRefused) {
  ModelConfig config = preset("tiny").value();

  EXPECT_TRUE(apply_expert_options({}, false, config));
  EXPECT_THAT(apply_expert_options({.balance = 0.1}, false, config).error().message,
              HasSubstr("the model has none"));
}

TEST(ExpertOptions, BiasReplacesTheLossOfANewModel) {
  ModelConfig config = preset("tiny").value();

  ASSERT_TRUE(apply_expert_options({.count = 4, .bias_rate = 0.01}, false, config));

  EXPECT_EQ(config.experts.bias_rate, 0.01);
  EXPECT_EQ(config.experts.balance, 0);
  EXPECT_EQ(config.experts.router().score, core::ScoreFunction::sigmoid);
  EXPECT_TRUE(config.experts.router().normalise);
  EXPECT_THAT(apply_expert_options({.bias_rate = 0.01}, true, config).error().message,
              HasSubstr("those of the model that was read have none"));
  EXPECT_THAT(check_expert_ranks({}, config, true).error().message, HasSubstr("--local has none"));
}

TEST(ExpertOptions, SpreadExpertsOverRanksThatDivideThem) {
  ModelConfig config = preset("tiny").value();
  config.experts = {.count = 4, .feed_forward = 5};
  const core::TrainingOptions two{.expert_parallel = 2}, three{.expert_parallel = 3};

  EXPECT_TRUE(check_expert_ranks({}, config, true));
  EXPECT_TRUE(check_expert_ranks(two, config, false));
  EXPECT_EQ(check_expert_ranks(three, config, false).error().message,
            "4 experts cannot be owned by 3 ranks alike; choose an expert parallel size that divides them");
  EXPECT_EQ(
      check_expert_ranks(two, preset("tiny").value(), false).error().message,
      "--expert-parallel 2 distributes experts, and the model has none; add --experts, or leave it out");
  EXPECT_EQ(check_expert_ranks(two, config, true).error().message,
            "--expert-parallel 2 is for several ranks, and --local for one; leave one of the two out");
}

}  // namespace
}  // namespace troupe::apps::gpt
