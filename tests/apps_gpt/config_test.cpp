#include "apps/gpt/model/config.hpp"
#include "tests/support/words.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace troupe::apps::gpt {
namespace {

using testing::HasSubstr;

TEST(ModelConfig, PresetsAreValid) {
  for (const char* name : {"tiny", "demo"}) EXPECT_TRUE(validate(preset(name).value())) << name;
}

TEST(ModelConfig, AnUnknownPresetNamesThoseThatExist) {
  EXPECT_THAT(preset("huge").error().message, HasSubstr("use tiny, demo, 350m, 760m or 1.5b"));
}

struct Flaw {
  std::function<void(ModelConfig&)> make;
  const char* message;

  friend std::ostream& operator<<(std::ostream& out, const Flaw& of) { return out << of.message; }
};

class FlawedConfig : public testing::TestWithParam<Flaw> {};

TEST_P(FlawedConfig, IsAnErrorNamingTheFieldAndItsValue) {
  ModelConfig config = preset("tiny").value();
  GetParam().make(config);

  const auto result = validate(config);

  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, core::Errc::invalid_argument);
  EXPECT_THAT(result.error().message, HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Each, FlawedConfig,
    testing::Values(
        Flaw{[](ModelConfig& c) { c.layers = 0; }, "layers must lie in 1..1024, found 0"},
        Flaw{[](ModelConfig& c) { c.heads = 0; }, "heads must lie in 1..1024, found 0"},
        Flaw{[](ModelConfig& c) { c.width = 1 << 20; }, "width must lie in 1..65536, found 1048576"},
        Flaw{[](ModelConfig& c) { c.feed_forward = 0; }, "feed_forward must"},
        Flaw{[](ModelConfig& c) { c.context = 0; }, "context must"},
        Flaw{[](ModelConfig& c) { c.vocabulary = 0; }, "vocabulary must"},
        Flaw{[](ModelConfig& c) { c.heads = 3; }, "found width 16 and heads 3"},
        Flaw{[](ModelConfig& c) { c.heads = 16; }, "must be even"},
        Flaw{[](ModelConfig& c) { c.head_dimension = 7; }, "head_dimension must be even"},
        Flaw{[](ModelConfig& c) { c.head_dimension = 1026; }, "head_dimension must be at most 1024"},
        Flaw{[](ModelConfig& c) { c.key_value_heads = 4; }, "found 2 heads and 4 key_value_heads"},
        Flaw{[](ModelConfig& c) { c.rope_scaling.factor = 0.5; }, "the factor of rope_scaling must"},
        Flaw{[](ModelConfig& c) { c.rope_scaling.low_frequency = 4; }, "0 < low_frequency < high_frequency"},
        Flaw{[](ModelConfig& c) { c.rope_base = 0.5; }, "rope_base must be at least 1, found 0.5"},
        Flaw{[](ModelConfig& c) { c.norm_epsilon = 0; }, "norm_epsilon must be above 0, found 0"},
        Flaw{[](ModelConfig& c) { c.initial_deviation = std::nan(""); }, "found nan"}),
    [](const auto& test) { return tests::words_of(test.param.message); });

TEST(ModelConfig, NamesOfNormsAndActivationsAreRead) {
  EXPECT_EQ(norm_from_name("rms").value(), Norm::rms);
  EXPECT_EQ(norm_from_name("layer").value(), Norm::layer);
  EXPECT_EQ(activation_from_name("swiglu").value(), Activation::swiglu);
  EXPECT_EQ(activation_from_name("gelu").value(), Activation::gelu);
  EXPECT_THAT(norm_from_name("batch").error().message, HasSubstr("use rms or layer"));
  EXPECT_THAT(activation_from_name("relu").error().message, HasSubstr("use swiglu or gelu"));
}

}  // namespace
}  // namespace troupe::apps::gpt
