#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/models/model_config.hpp"
#include "tests/core/models/example_configs.hpp"

namespace troupe::core {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(FromHuggingFace, FindsRotaryValuesInRootTextConfigAndRope) {
  const auto newer = with(without(published("Qwen3-8B"), "rope_theta"), "rope_parameters",
                          R"({"rope_theta": 5000.0, "rope_type": "default"})");
  const auto nested = with(published("Qwen3-VL-8B"), "text_config.rope_theta", "77.0");

  EXPECT_EQ(convert(newer).builder.rotary_base, 5000);
  EXPECT_EQ(convert(with(newer, "rope_theta", "5000")).builder.rotary_base, 5000);
  EXPECT_EQ(convert(nested).builder.rotary_base, 77);
  EXPECT_EQ(convert(without(published("Qwen3-8B"), "rope_theta")).builder.rotary_base, 1e4);
}

TEST(FromHuggingFace, TakesLlama3ScalingOnlyWithItsBuiltInValues) {
  const auto llama = with(published("deepseek-coder-1.3b"), "rope_scaling",
                          R"({"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                              "original_max_position_embeddings": 8192, "rope_type": "llama3"})");

  EXPECT_TRUE(convert(llama).builder.rope_scaling);
  EXPECT_EQ(convert(llama).builder.rope_scaling_factor, 8);
  EXPECT_EQ(convert(llama).builder.seq_len_interpolation_factor, std::nullopt);
  EXPECT_THAT(refusal(with(llama, "rope_scaling.low_freq_factor", "2.0")),
              HasSubstr("rope_scaling.low_freq_factor"));
}

TEST(FromHuggingFace, GivesYarnTheFieldsOfMegatron) {
  const auto yarn =
      with(published("Qwen3-8B"), "rope_scaling",
           R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768})");

  const auto& builder = convert(yarn).builder;

  EXPECT_EQ(builder.position_embedding_type, "yarn");
  EXPECT_EQ(builder.yarn_rotary_scaling_factor, 4);
  EXPECT_EQ(builder.yarn_original_max_position_embeddings, 32768);
  EXPECT_EQ(builder.yarn_beta_fast, 32);
  EXPECT_EQ(builder.yarn_beta_slow, 1);
  EXPECT_EQ(builder.yarn_mscale, std::nullopt);
  EXPECT_EQ(builder.yarn_correction_range_round_to_int, true);
  const auto factors = with(with(yarn, "rope_scaling.mscale", "0.7"), "rope_scaling.mscale_all_dim", "1.5");
  EXPECT_EQ(convert(factors).builder.yarn_mscale, 0.7);
  EXPECT_EQ(convert(factors).builder.yarn_mscale_all_dim, 1.5);
  EXPECT_THAT(refusal(with(yarn, "rope_scaling.attention_factor", "1.0")), HasSubstr("attention_factor"));
  const auto again = to_huggingface(convert(factors));
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(convert(*again).builder, convert(factors).builder);
}

// transformers scales attention by mscale_all_dim alone, and cosines by mscale only if both are given.
TEST(FromHuggingFace, GivesLatentAttentionTheFactorsThatTransformersTakes) {
  const auto none =
      without(without(published("DeepSeek-V3"), "rope_scaling.mscale"), "rope_scaling.mscale_all_dim");

  EXPECT_EQ(convert(none).transformer.mscale, 1);
  EXPECT_EQ(convert(none).transformer.mscale_all_dim, 0);
  EXPECT_EQ(convert(with(none, "rope_scaling.mscale", "1.0")).transformer.mscale_all_dim, 0);
  EXPECT_THAT(refusal(with(none, "rope_scaling.mscale", "0.5")), HasSubstr("mscale"));
  EXPECT_THAT(refusal(with(none, "rope_scaling.mscale_all_dim", "1.0")), HasSubstr("mscale"));
}

TEST(FromHuggingFace, TakesNullForAMissingKey) {
  EXPECT_EQ(convert(with(published("Qwen3-8B"), "head_dim", "null")).transformer.kv_channels, 128);
  EXPECT_THAT(refusal(with(published("Qwen3-8B"), "hidden_size", "null")),
              HasSubstr("key 'hidden_size' is missing"));
}

TEST(FromHuggingFace, MapsLayersWithoutExperts) {
  const auto sparse =
      with(with(published("Qwen3-30B-A3B"), "num_hidden_layers", "6"), "decoder_sparse_step", "2");

  EXPECT_THAT(convert(sparse).transformer.moe_layer_freq, ElementsAre(0, 1, 0, 1, 0, 1));
  EXPECT_THAT(convert(with(sparse, "mlp_only_layers", "[3]")).transformer.moe_layer_freq,
              ElementsAre(0, 1, 0, 0, 0, 1));
}

TEST(FromHuggingFace, FollowsNormTopkProb) {
  const auto qwen = published("Qwen3-30B-A3B");

  EXPECT_TRUE(convert(with(qwen, "norm_topk_prob", "false")).transformer.moe_router_pre_softmax);
  EXPECT_FALSE(convert(with(published("Qwen2-57B-A14B"), "norm_topk_prob", "true"))
                   .transformer.moe_router_pre_softmax);
  EXPECT_THAT(refusal(with(published("DeepSeek-V3"), "norm_topk_prob", "false")),
              HasSubstr("norm_topk_prob"));
}

struct Refused {
  std::string model, key, value;
};

/// Each changes what the model computes, and none has a field.
// Covers ranks-24.
TEST(FromHuggingFace, RefusesUnsupportedMathsByName) {
  const std::vector<Refused> cases{
      {"Qwen2.5-7B", "hidden_act", R"("gelu")"},
      {"Qwen3-8B", "layer_types", R"(["sliding_attention"])"},
      {"Qwen3-8B", "layer_types", R"(["linear_attention"])"},
      {"deepseek-coder-1.3b", "sliding_window", "4096"},
      {"deepseek-coder-1.3b", "attention_chunk_size", "4096"},
      {"Mixtral-8x7B", "router_jitter_noise", "0.1"},
      {"deepseek-coder-1.3b", "mlp_bias", "true"},
      {"deepseek-coder-1.3b", "partial_rotary_factor", "0.5"},
      {"deepseek-coder-1.3b", "rope_scaling.type", R"("dynamic")"},
      {"deepseek-coder-1.3b", "rope_scaling.type", R"("longrope")"},
      {"deepseek-coder-1.3b", "rope_scaling.short_factor", "[1.0]"},
      {"deepseek-coder-1.3b", "attn_logit_softcapping", "30.0"},
      {"Qwen3-30B-A3B", "attention_bias", "true"},
      {"DeepSeek-V3", "rope_scaling.type", R"("dynamic")"},
      {"DeepSeek-V3", "scoring_func", R"("softmax")"},
      {"DeepSeek-V3", "topk_method", R"("greedy")"},
      {"DeepSeek-V3", "topk_group", "2"},
      {"DeepSeek-V3", "attention_bias", "true"},
      {"DeepSeek-V3", "quantization_config", R"({"quant_method": "fp8"})"},
      {"GLM-4.5-Air", "n_shared_experts", "2"},
      {"Qwen2.5-VL-7B", "vision_config.depth", "31"},
      {"Qwen3-VL-8B", "vision_config.hidden_act", R"("silu")"},
  };

  for (const auto& [model, key, value] : cases) {
    EXPECT_THAT(refusal(with(published(model), key, value)), HasSubstr(key)) << model;
  }
}

TEST(FromHuggingFace, TakesAnUnknownKeyOnlyWhenItIsIgnored) {
  const auto config = with(published("Qwen3-8B"), "mystery", "3");
  ConvertOptions options;
  options.ignored = {"mystery"};

  EXPECT_THAT(refusal(config), HasSubstr("key 'mystery' is unknown"));
  EXPECT_EQ(convert(config, options), convert(published("Qwen3-8B")));
}

// Covers ranks-24.
TEST(FromHuggingFace, RefusesWhatIsNotOneKnownArchitecture) {
  const auto config = published("Qwen3-8B");

  EXPECT_THAT(refusal(with(config, "architectures", R"(["Qwen3ForCausalLM", "Qwen2ForCausalLM"])")),
              HasSubstr("exactly one"));
  const auto unknown = from_huggingface(with(config, "architectures", R"(["GPT2LMHeadModel"])"), {});
  EXPECT_EQ(unknown.error().code, Errc::unavailable);
  EXPECT_THAT(unknown.error().message, HasSubstr("LlamaForCausalLM, LlamaForTokenClassification"));
  EXPECT_THAT(unknown.error().message, HasSubstr("Qwen3VLMoeForConditionalGeneration"));
  for (const char* name : {"Llama4ForConditionalGeneration", "GptOssForCausalLM"}) {
    const auto none = from_huggingface(with(config, "architectures", "[\"" + std::string(name) + "\"]"), {});
    EXPECT_EQ(none.error().code, Errc::unavailable);
    EXPECT_THAT(none.error().message, HasSubstr("no conversion"));
  }
}

TEST(FromHuggingFace, RefusesTextThatIsNoObject) {
  for (const char* text : {"", "[]", "3", "{\"a\":1,\"a\":2}", "{\"a\":"})
    EXPECT_EQ(from_huggingface(text, {}).error().code, Errc::corrupt) << text;
}

TEST(FromHuggingFace, LetsOverridesWinAndWarnsOfUnknownOnes) {
  ConvertOptions options;
  options.overrides = {{"moe_router_pre_softmax", "true"},
                       {"attention_backend", "flash"},
                       {"no_such_field", "1"},
                       {"neither", "2"}};

  const auto converted = from_huggingface(published("Mixtral-8x7B"), options).value();

  EXPECT_TRUE(converted.config.transformer.moe_router_pre_softmax);
  EXPECT_EQ(converted.config.transformer.attention_backend, "flash");
  EXPECT_THAT(converted.warnings,
              ElementsAre("overrides that are not fields are dropped: neither, no_such_field"));
}

TEST(FromHuggingFace, RefusesAnOverrideThatQwen25VlLacks) {
  ConvertOptions options;
  options.overrides = {{"no_such_field", "1"}};

  EXPECT_THAT(refusal(published("Qwen2.5-VL-7B"), options), HasSubstr("no_such_field"));
}

TEST(FromHuggingFace, RefusesAnAttentionBackendThatIsNone) {
  ConvertOptions options;
  options.overrides = {{"attention_backend", "fast"}};

  EXPECT_THAT(refusal(published("Qwen3-8B"), options), HasSubstr("attention_backend 'fast'"));
}

TEST(FromHuggingFace, SetsMtpOfDeepSeekAfterTheOverrides) {
  ConvertOptions options;
  options.overrides = {{"mtp_num_layers", "1"}, {"mtp_loss_scaling_factor", "0.3"}};

  const auto config = convert(published("DeepSeek-V3"), options).transformer;

  EXPECT_EQ(config.mtp_num_layers, 0);
  EXPECT_EQ(config.mtp_loss_scaling_factor, 0.1);
  EXPECT_EQ(convert(published("MiMo-7B"), options).transformer.mtp_loss_scaling_factor, 0.3);
}

TEST(FromHuggingFace, ReplacesKeysBeforeItReadsThem) {
  ConvertOptions options;
  options.keys = {{"num_nextn_predict_layers", "0"}, {"quantization_config", "null"}};

  EXPECT_EQ(convert(published("DeepSeek-V3"), options), convert(published("DeepSeek-V3")));
  options.keys = {{"hidden_act", "gelu"}};
  EXPECT_THAT(refusal(published("Qwen3-8B"), options), HasSubstr("key 'hidden_act' is \"gelu\""));
  options.keys = {{"rope_scaling", "{\"type\""}};
  EXPECT_THAT(refusal(published("Qwen3-8B"), options), HasSubstr("is not JSON"));
}

TEST(FromHuggingFace, SaysWhatItLeavesOutOfADeepSeek) {
  const auto warnings = from_huggingface(published("DeepSeek-V3"), {}).value().warnings;

  EXPECT_THAT(warnings, Contains(HasSubstr("num_nextn_predict_layers is 1: layers from 61 on")));
  EXPECT_THAT(warnings, Contains(HasSubstr("quantization_config")));
}

TEST(FromHuggingFace, KeepsKeysThatChangeNothing) {
  const auto kept = convert(published("Qwen3-8B")).kept;

  EXPECT_EQ(kept.at("eos_token_id"), "151645");
  EXPECT_EQ(kept.at("torch_dtype"), "\"bfloat16\"");
  EXPECT_FALSE(kept.contains("hidden_size"));
}

TEST(FromHuggingFace, GivesTokenClassifiersAHeadOfOneOutput) {
  const auto text = with(published("Qwen3-8B"), "architectures", R"(["Qwen3ForTokenClassification"])");

  EXPECT_TRUE(convert(text).builder.value_head);
  EXPECT_FALSE(convert(published("Qwen3-8B")).builder.value_head);
}

TEST(ToHuggingFace, RefusesWhatConfigJsonCannotSay) {
  auto model = convert(published("Qwen3-8B"));
  model.transformer.add_qkv_bias = true;
  EXPECT_TRUE(to_huggingface(model).has_value());  // as attention_bias

  model.transformer.qk_layernorm = false;
  EXPECT_THAT(to_huggingface(model).error().message, HasSubstr("qk_layernorm is false"));
}

TEST(ToHuggingFace, SaysTheValuesOfThePublishedFile) {
  const auto text = to_huggingface(convert(published("Qwen3-8B"))).value();

  for (const char* line : {"\"head_dim\": 128", "\"num_key_value_heads\": 8", "\"rope_theta\": 1000000.0",
                           "\"model_type\": \"qwen3\"", "\"eos_token_id\": 151645"})
    EXPECT_THAT(text, HasSubstr(line));
}

TEST(ModelConfig, IsRefusedWithAFieldMissingOrUnknown) {
  const auto text = to_text(convert(published("Qwen3-8B")));

  EXPECT_THAT(parse_model_config(without(text, "transformer_config.num_layers")).error().message,
              HasSubstr("num_layers"));
  EXPECT_EQ(parse_model_config(with(text, "model.extra", "1")).error().code, Errc::corrupt);
  EXPECT_EQ(parse_model_config("{}").error().code, Errc::corrupt);
}

}  // namespace
}  // namespace troupe::core
