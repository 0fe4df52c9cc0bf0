#include "apps/gpt/options.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/scratch_folder.hpp"

namespace troupe::apps::gpt {
namespace {

using core::DType;
using testing::HasSubstr;

Options parsed(const std::string& line) {
  Options options;
  CLI::App app;
  add_options(app, options);
  app.parse("--text made-up " + line, false);
  return options;
}

std::string error_of(const std::string& line) {
  const auto run = run_options(parsed(line), nullptr);
  return run ? "a run" : run.error().message;
}

class OptionsOfAModel : public testing::Test {
 protected:
  OptionsOfAModel() {
    ModelConfig config = preset("tiny").value();
    config.key_value_heads = 1;
    const auto ones = [](std::size_t, core::ElementRange, std::span<float> values) {
      std::fill(values.begin(), values.end(), 1.0F);
      return core::Result<void>{};
    };
    EXPECT_TRUE(export_model(config, ones, {.directory = directory_}));
  }

  tests::ScratchFolder folder_;
  std::string directory_ = folder_.path("model");
};

TEST_F(OptionsOfAModel, BeginFromItAndExportWithItsFiles) {
  const auto options = parsed("--model " + directory_ + " --context 7 --export out --export-dtype bf16");
  const auto origin = origin_of(options).value();

  const RunOptions run = run_options(options, origin.get()).value();

  EXPECT_EQ(run.origin, origin.get());
  EXPECT_EQ(run.trainer.initial, origin.get());
  EXPECT_EQ(run.trainer.model.key_value_heads, 1U);
  EXPECT_EQ(run.trainer.model.context, 7U);
  EXPECT_EQ(run.trainer.microbatch.length, 7U);
  EXPECT_EQ(run.export_to.directory, "out");
  EXPECT_EQ(run.export_to.dtype, DType::bf16);
  EXPECT_EQ(run.export_to.origin, origin.get());
}

TEST_F(OptionsOfAModel, MayNotSayAnythingElseOfIt) {
  for (const char* other : {"--preset tiny", "--layers 3", "--heads 1", "--width 16", "--feed-forward 16",
                            "--untied", "--norm layer", "--activation gelu"}) {
    const auto origin = origin_of(parsed("--model " + directory_ + " " + other));
    ASSERT_FALSE(origin) << other;
    EXPECT_THAT(origin.error().message, HasSubstr("says what the model is; leave out")) << other;
  }
}

TEST(GptOptions, WithoutAModelBeginFromAPresetAndTheSeed) {
  const auto options = parsed("--preset tiny");

  EXPECT_EQ(origin_of(options).value(), nullptr);
  const RunOptions run = run_options(options, nullptr).value();

  EXPECT_EQ(run.trainer.initial, nullptr);
  EXPECT_TRUE(run.export_to.directory.empty());
}

TEST(GptOptions, EvaluateOnlyInOneProcess) {
  EXPECT_THAT(error_of("--evaluate-only"), HasSubstr("--evaluate-only needs --local"));
  EXPECT_EQ(error_of("--evaluate-only --local"), "a run");
}

}  // namespace
}  // namespace troupe::apps::gpt
