#include "apps/gpt/experts/expert_options.hpp"

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

TEST(ExpertOptions, AModelsOwnExpertsStayAndItsRoutersHaveNoLossUnlessOneIsAskedFor) {
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

}  // namespace
}  // namespace troupe::apps::gpt
