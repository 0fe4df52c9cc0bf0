#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/convert/convert_tool.hpp"

namespace troupe::apps {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using Json = nlohmann::json;

TEST(ConvertConfig, PrintsTheFieldsOfMegatronAsJson) {
  const auto run = run_convert({"config", golden_model("Qwen3-8B.json"), "--to", "megatron", "--tp", "2",
                                "--pp", "2", "--cp", "2", "--json"});

  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto json = Json::parse(run.out);
  EXPECT_EQ(json["architecture"], "Qwen3ForCausalLM");
  const auto& config = json["transformer_config"];
  EXPECT_EQ(config["num_layers"], 36);
  EXPECT_EQ(config["num_query_groups"], 8);
  EXPECT_EQ(config["tensor_model_parallel_size"], 2);
  EXPECT_EQ(config["sequence_parallel"], true);
  EXPECT_EQ(config["params_dtype"], "bfloat16");
  EXPECT_EQ(config["num_moe_experts"], nullptr);
  EXPECT_EQ(json["model"]["rotary_base"], 1e6);
}

TEST(ConvertConfig, WritesTheConfigJsonAgain) {
  const ScratchFolder directory;
  const auto there = run_convert({"config", golden_model("Mixtral-8x7B.json"), "--to", "megatron", "--json"});
  write_text(directory.path("megatron.json"), there.out);

  const auto back = run_convert({"config", directory.path("megatron.json"), "--to", "huggingface"});

  ASSERT_EQ(back.exit_code, 0) << back.err;
  const auto before = Json::parse(read_text(golden_model("Mixtral-8x7B.json")));
  auto after = Json::parse(back.out);
  for (const auto& [key, value] : before.items()) {
    if (value.is_null()) continue;
    EXPECT_EQ(after[key], value) << key;
  }
}

TEST(ConvertConfig, FindsTheFileInADirectory) {
  const ScratchFolder directory;
  write_text(directory.path("config.json"), read_text(golden_model("Qwen2.5-7B.json")));

  const auto run = run_convert({"config", directory.path(""), "--to", "megatron"});

  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("Qwen2ForCausalLM\n  layers 28, hidden 3584"));
}

TEST(ConvertConfig, NamesAKeyThatItCannotConvert) {
  const auto run = run_convert(
      {"config", golden_model("Qwen3-8B.json"), "--to", "megatron", "--key", "attn_logit_softcapping=50.0"});

  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.out, IsEmpty());
  EXPECT_THAT(run.err, HasSubstr("attn_logit_softcapping"));
}

TEST(ConvertConfig, TakesPublishedDeepSeeksAndSaysWhatItOmits) {
  const auto run = run_convert({"config", golden_model("DeepSeek-V3.json"), "--to", "megatron"});

  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.out, HasSubstr("layers 61"));
  EXPECT_THAT(run.err, HasSubstr("num_nextn_predict_layers"));
}

TEST(ConvertConfig, RefusesLayersThatDoNotDivideIntoStages) {
  const Words words{"config", golden_model("DeepSeek-V3.json"), "--to", "megatron", "--pp", "4"};

  const auto run = run_convert(words);
  const auto other = run_convert(words + Words{"--set", "num_layers_in_first_pipeline_stage=15"});
  const auto fits = run_convert(words + Words{"--set", "num_layers_in_first_pipeline_stage=15", "--set",
                                              "num_layers_in_last_pipeline_stage=16"});

  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("61 layers do not divide into 4 stages of 1 chunks (61 = 4 * 15 + 1)"));
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("46 layers for 3 stages"));
  EXPECT_EQ(fits.exit_code, 0) << fits.err;
}

TEST(ConvertConfig, CallsAPointerOfGitLfsByItsName) {
  const ScratchFolder directory;
  write_text(directory.path("config.json"),
             "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 700\n");

  const auto run = run_convert({"config", directory.path(""), "--to", "megatron"});

  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("is a pointer of Git LFS, not the file itself, which has 700 bytes"));
}

TEST(ConvertConfig, TakesKeysFieldsAndDefaultsFromTheCommandLine) {
  const auto run = run_convert({"config", golden_model("DeepSeek-V3.json"), "--to", "megatron", "--key",
                                "num_nextn_predict_layers=0", "--key", "quantization_config=null", "--set",
                                "attention_backend=flash", "--set", "nothing=1", "--class-defaults",
                                "--dtype", "f16", "--json"});

  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto config = Json::parse(run.out)["transformer_config"];
  EXPECT_EQ(config["attention_backend"], "flash");
  EXPECT_EQ(config["kv_channels"], 64);
  EXPECT_EQ(config["params_dtype"], "float16");
  EXPECT_EQ(config["bf16"], false);
  EXPECT_THAT(run.err, HasSubstr("dropped: nothing"));
}

TEST(ConvertConfig, SaysThatAFileIsMissing) {
  const auto run = run_convert({"config", "no/such/config.json", "--to", "megatron"});

  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("no/such"));
}

TEST(ConvertConfig, TakesAMeshInOneWord) {
  const Words words{"config", golden_model("Qwen3-30B-A3B.json"), "--to", "megatron", "--json", "--mesh"};

  auto run = run_convert(words + Words{"tp=2,pp=4,ep=8,vpp=3"});

  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto config = Json::parse(run.out)["transformer_config"];
  EXPECT_EQ(config["tensor_model_parallel_size"], 2);
  EXPECT_EQ(config["pipeline_model_parallel_size"], 4);
  EXPECT_EQ(config["expert_model_parallel_size"], 8);
  EXPECT_EQ(config["virtual_pipeline_model_parallel_size"], 3);
  EXPECT_EQ(config["overlap_p2p_comm"], true);
  for (const char* wrong : {"tp", "tp=0", "tp=x", "dp=2", "tp=2x"})
    EXPECT_EQ(run_convert(words + Words{wrong}).exit_code, 2) << wrong;
}

TEST(ConvertConfig, RefusesWordsThatAreNoPairs) {
  const auto run =
      run_convert({"config", golden_model("Qwen3-8B.json"), "--to", "megatron", "--set", "novalue"});

  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("expected NAME=VALUE, found \"novalue\""));
}

}  // namespace
}  // namespace troupe::apps
