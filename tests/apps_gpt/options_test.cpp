#include "apps/gpt/options/options.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
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

TEST_F(OptionsOfAModel, ReplaceKeysOfItsConfigAndPassOverOthers) {
  const auto model = "--model " + directory_ + " ";

  const auto refused = origin_of(parsed(model + "--key unheard_of=3"));
  const auto ignored =
      origin_of(parsed(model + "--key unheard_of=3 --ignore unheard_of --key rope_theta=5e5"));
  const auto local = parsed(model + "--local --key rope_theta=5e5 --ignore unheard_of");

  EXPECT_THAT(refused.error().message, HasSubstr("--ignore unheard_of"));
  ASSERT_TRUE(ignored) << ignored.error().message;
  EXPECT_EQ((*ignored)->config().rope_base, 5e5);
  EXPECT_THAT((*ignored)->config_text(), HasSubstr("\"rope_theta\": 500000.0"));
  const auto origin = origin_of(local).value();
  EXPECT_TRUE(run_options(local, origin.get()));
  EXPECT_THAT(origin_of(parsed(model + "--key rope_theta")).error().message,
              HasSubstr("expected NAME=VALUE"));
  EXPECT_THAT(origin_of(parsed("--key rope_theta=5e5")).error().message,
              HasSubstr("--model, which is not given"));
}

TEST_F(OptionsOfAModel, WithoutAConfigAreRefusedExportBeforeTraining) {
  ModelConfig config = preset("tiny").value();
  const ExportOptions to{.directory = folder_.path("new")};
  EXPECT_TRUE(check_export(config, to));
  config.experts.count = 4;
  config.experts.bias_rate = 0.001;

  const auto refused = check_export(config, to);

  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("--bias-rate"));
  EXPECT_TRUE(check_export(config, {}));
}

TEST(GptOptions, WithoutAModelBeginFromPresetAndSeed) {
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

TEST(GptOptions, UnsupportedByALocalRunAreRefusedByName) {
  for (const std::string option :
       {"--checkpoints made-up", "--output made-up", "--resume made-up", "--save-every 5", "--keep-last 5",
        "--strategy zero3", "--numerics fast", "--collectives tcp", "--local-checkpoints made-up",
        "--trace-steps 5", "--peak-tera-flops 5", "--bucket-elements 5", "--wire-dtype bf16"}) {
    EXPECT_THAT(error_of("--local " + option),
                HasSubstr("cannot do what " + option.substr(0, option.find(' ')) + " asks for"));
    EXPECT_EQ(error_of(option), "a run");
  }
  EXPECT_THAT(error_of("--local --tf32 --device cuda --dtype bf16 --trace"),
              HasSubstr("cannot do what --device \"cuda\", --dtype \"bf16\", --tf32, --trace asks"));
  EXPECT_THAT(error_of("--local --optimizer lion"), HasSubstr("--optimizer \"lion\""));
  EXPECT_THAT(error_of("--local --loss-scale dynamic"), HasSubstr("--loss-scale \"dynamic\""));
}

TEST(GptOptions, ThatRestateALocalRunsBehaviourAreTaken) {
  for (const char* line :
       {"--device host --dtype f32", "--dtype fp32", "--optimizer adamw --loss-scale none", "--recompute",
        "--tensor-parallel 1", "--experts 4 --experts-per-token 2 --z-loss 0.1 --bias-rate 0",
        "--preset tiny --context 8 --export out --export-dtype bf16 --seed 3 --temperature 0 --top-k 1"})
    EXPECT_EQ(error_of(std::string("--local ") + line), "a run") << line;
}

TEST(GptOptions, BeyondAnEvaluationAreRefusedWithIt) {
  for (const char* more : {"--export out", "--sample-bytes 5", "--prompt a"})
    EXPECT_THAT(error_of(std::string("--local --evaluate-only ") + more),
                HasSubstr("--evaluate-only prints the perplexity and ends, found --"));
  EXPECT_EQ(error_of("--local --evaluate-only --sample-bytes 0"), "a run");
}

TEST(GptOptions, SayHowAPipelineIsCut) {
  const auto run =
      run_options(parsed("--pipeline-parallel 4 --pipeline-schedule interleaved --pipeline-chunks 2"),
                  nullptr)
          .value();

  EXPECT_EQ(run.trainer.session.training.pipeline_parallel, 4);
  EXPECT_EQ(run.trainer.pipeline.schedule, core::ScheduleKind::interleaved);
  EXPECT_EQ(run.trainer.pipeline.chunks, 2);
  EXPECT_THAT(run.configuration, testing::Contains(std::pair<std::string, std::string>(
                                     "pipeline", "4 stages of 2 chunks, interleaved")));
  const auto split = run_options(parsed("--pipeline-parallel 2 --pipeline-schedule zero-bubble"), nullptr);
  EXPECT_EQ(split->trainer.pipeline.schedule, core::ScheduleKind::zero_bubble);
}

TEST(GptOptions, OfPipelinesThatCannotBeAreRefused) {
  EXPECT_EQ(error_of("--pipeline-parallel 2"), "a run");
  EXPECT_THAT(error_of("--pipeline-parallel 2 --local"), HasSubstr("--local trains in one process"));
  EXPECT_THAT(error_of("--pipeline-parallel 2 --pipeline-schedule gpipe --pipeline-chunks 2"),
              HasSubstr("expected one chunk per stage with --pipeline-schedule gpipe"));
  EXPECT_THAT(error_of("--pipeline-schedule zero-bubble"), HasSubstr("are about stages, and there is one"));
  EXPECT_THROW(parsed("--pipeline-schedule zero_bubble"), CLI::ValidationError);
}

}  // namespace
}  // namespace troupe::apps::gpt
