// What strangers' files of config.json say in many ways: what changes nothing is no obstacle, what changes
// the maths is followed or refused by name.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/models/model_config.hpp"
#include "tests/core/models/example_configs.hpp"

namespace troupe::core {
namespace {

using Json = nlohmann::json;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::string changed(const std::string& model, const Json& values) {
  auto json = Json::parse(published(model));
  for (const auto& [key, value] : values.items()) json[key] = value;
  return json.dump();
}

/// All but what is kept as it stands.
void expect_the_model(const std::string& model, const Json& values) {
  auto converted = convert(changed(model, values)), plain = convert(published(model));
  converted.kept = plain.kept = {};
  EXPECT_EQ(converted, plain) << values;
}

TEST(PublishedConfigs, ConvertAsTheyAre) {
  const auto all = more_published();
  EXPECT_THAT(all, SizeIs(34));
  for (const auto& [name, text] : all) {
    const auto converted = from_huggingface(text, {});
    ASSERT_TRUE(converted) << name << ": " << converted.error().message;
    const auto json = Json::parse(text);
    EXPECT_EQ(converted->config.transformer.num_layers, json["num_hidden_layers"]) << name;
    EXPECT_EQ(converted->config.builder.share_embeddings_and_output_weights,
              json.value("tie_word_embeddings", false))
        << name;
    const auto again = to_huggingface(converted->config);
    ASSERT_TRUE(again) << name << ": " << again.error().message;
    auto back = convert(*again);
    back.kept = converted->config.kept;  // which has the names that wrappers gave
    EXPECT_EQ(back, converted->config) << name;
  }
}

TEST(PublishedConfigs, OfTheFirstMistralHaveItsWindow) {
  const auto config = convert(more_published().at("Mistral-7B-v0.1")).transformer;

  EXPECT_THAT(config.window_size, ElementsAre(4095, 0));
  EXPECT_THAT(config.window_attn_skip_freq, IsEmpty());
}

TEST(PublishedConfigs, OfTheFirstLlamaHaveItsClasssDefaults) {
  const auto model = convert(more_published().at("llama-7b-hf"));

  EXPECT_EQ(model.transformer.num_query_groups, 32);
  EXPECT_EQ(model.builder.max_sequence_length, 2048);
  EXPECT_EQ(model.builder.rotary_base, 1e4);
}

TEST(MissingKeys, HaveTheValuesOfTransformersClasses) {
  const auto coder = published("deepseek-coder-1.3b"), mistral = published("Mistral-7B-v0.3");

  EXPECT_EQ(convert(without(coder, "num_key_value_heads")).transformer.num_query_groups, 16);
  EXPECT_EQ(convert(without(mistral, "num_key_value_heads")).transformer.num_query_groups, 8);
  EXPECT_EQ(convert(with(mistral, "num_key_value_heads", "null")).transformer.num_query_groups, 32);
  EXPECT_EQ(convert(without(published("Mixtral-8x7B"), "rms_norm_eps")).transformer.layernorm_epsilon, 1e-5);
  EXPECT_EQ(convert(without(mistral, "rms_norm_eps")).transformer.layernorm_epsilon, 1e-6);
  EXPECT_EQ(convert(without(coder, "max_position_embeddings")).builder.max_sequence_length, 2048);
  EXPECT_EQ(convert(without(published("Qwen3-8B"), "head_dim")).transformer.kv_channels, 128);
  EXPECT_EQ(convert(without(published("GLM-4.5-Air"), "partial_rotary_factor")).builder.rotary_percent, 0.5);
  EXPECT_FALSE(convert(without(published("GLM-4.5-Air"), "attention_bias")).transformer.add_qkv_bias);
  EXPECT_FALSE(convert(without(coder, "tie_word_embeddings")).builder.share_embeddings_and_output_weights);
  EXPECT_EQ(convert(without(published("GLM-4.5-Air"), "n_group")).transformer.moe_router_num_groups,
            std::nullopt);
  const auto deepseek = convert(without(without(published("DeepSeek-V3"), "n_group"), "topk_group"));
  EXPECT_EQ(deepseek.transformer.moe_router_num_groups, 8);
  EXPECT_EQ(deepseek.transformer.moe_router_group_topk, 4);
}

TEST(HarmlessKeys, AreNoObstacle) {
  const std::vector<Json> harmless{
      {{"is_llama_config", true}, {"rope_interleaved", false}, {"transformers.js_config", {{"dtype", "q4"}}}},
      {{"unsloth_fixed", true}, {"unsloth_version", "2026.8.1"}, {"unsloth_tiled_mlp", true}},
      {{"neftune_noise_alpha", 0.0}, {"gradient_checkpointing", true}, {"_flash_attn_2_enabled", true}},
      {{"_attn_implementation_internal", "sdpa"},
       {"use_flash_attn", true},
       {"_experts_implementation", "eager"}},
      {{"seq_length", 2048}, {"n_positions", 128}, {"num_logits_to_keep", 1}, {"penalty_alpha", 0.6}},
      {{"fp16", true}, {"model_parallel", false}, {"tokenizer_name", "x"}, {"trust_remote_code", true}},
      {{"max_sequence_length", 2048},
       {"model_max_length", 4096},
       {"unk_token_id", 3},
       {"pad_token", "<pad>"}},
      {{"attn_logit_softcapping", nullptr}, {"final_logit_softcapping", 0.0}, {"embedding_multiplier", 1.0}},
      {{"residual_multiplier", 1},
       {"logits_scaling", 1.0},
       {"logit_scale", 1.0},
       {"lm_head_multiplier", 1.0}},
      {{"embd_pdrop", 0.0}, {"resid_pdrop", 0}, {"hidden_dropout", 0.0}, {"attention_dropout", 0}},
      {{"mlp_bias", false}, {"use_bias", false}, {"lm_head_bias", false}, {"quantization_config", nullptr}},
      {{"pruned_heads", Json::object()},
       {"per_layer_config", Json::object()},
       {"add_cross_attention", false}},
      {{"hidden_act", "swish"}, {"partial_rotary_factor", 1.0}, {"use_sliding_window", false}},
      {{"sliding_window", nullptr}, {"layer_types", Json::array()}, {"attention_chunk_size", nullptr}},
      {{"sliding_window", 16384}, {"attention_chunk_size", 100000}},  // not reached by 16384 positions
      {{"sliding_window", 4096}, {"use_sliding_window", false}},
      {{"original_max_position_embeddings", 4096}},  // linear scaling does not read it
  };

  for (const auto& values : harmless) expect_the_model("deepseek-coder-1.3b", values);
}

TEST(HarmlessKeys, WithOtherValuesThatChangeMathsAreRefused) {
  const Json values = {{"rope_interleaved", true},
                       {"neftune_noise_alpha", 5.0},
                       {"attn_logit_softcapping", 50},
                       {"final_logit_softcapping", 30.0},
                       {"embedding_multiplier", 12.0},
                       {"residual_multiplier", 0.22},
                       {"logits_scaling", 8.0},
                       {"logit_scale", 0.0625},
                       {"attention_multiplier", 1.0},
                       {"query_pre_attn_scalar", 256},
                       {"embd_pdrop", 0.1},
                       {"use_bias", true},
                       {"lm_head_bias", true},
                       {"mlp_bias", true},
                       {"use_rope", false},
                       {"is_causal", false},
                       {"no_rope_layers", {0, 1}},
                       {"per_layer_config", {{"1", {{"head_dim", 8}}}}},
                       {"quantization", {{"bits", 4}}},
                       {"pruned_heads", {{"1", {0}}}},
                       {"hidden_act", "gelu"},
                       {"unknown", 1},
                       {"unknown_too", false}};

  for (const auto& [key, value] : values.items())
    EXPECT_THAT(refusal(changed("deepseek-coder-1.3b", {{key, value}})), HasSubstr("key '" + key + "'"));
}

/// A value that would change the maths of a class that reads the key.
const Json& keys_of_parts() {
  static const Json kKeys = {{"num_experts", 5},
                             {"num_local_experts", 5},
                             {"n_routed_experts", 5},
                             {"num_experts_per_tok", 3},
                             {"moe_intermediate_size", 7},
                             {"shared_expert_intermediate_size", 7},
                             {"n_shared_experts", 2},
                             {"decoder_sparse_step", 2},
                             {"mlp_only_layers", {0}},
                             {"moe_layer_freq", 2},
                             {"first_k_dense_replace", 1},
                             {"norm_topk_prob", true},
                             {"n_group", 4},
                             {"router_jitter_noise", 0.1},
                             {"router_aux_loss_coef", 0.5},
                             {"topk_group", 2},
                             {"topk_method", "greedy"},
                             {"scoring_func", "softmax"},
                             {"seq_aux", false},
                             {"aux_loss_alpha", 0.1},
                             {"routed_scaling_factor", 3.0},
                             {"q_lora_rank", 4},
                             {"kv_lora_rank", 4},
                             {"qk_nope_head_dim", 4},
                             {"qk_rope_head_dim", 4},
                             {"qk_head_dim", 9},
                             {"v_head_dim", 4},
                             {"num_mtp_layers", 1},
                             {"tokens_per_second", 4},
                             {"num_nextn_predict_layers", 1},
                             {"qkv_bias", true},
                             {"mlp_bias", true}};
  return kKeys;
}

// Read off the classes of transformers 5.24; tests/interop asks the classes themselves.
TEST(KeysOfOtherModels, ArePassedOverWithAWord) {
  const std::set<std::string> router{"num_experts",         "num_experts_per_tok", "moe_intermediate_size",
                                     "decoder_sparse_step", "mlp_only_layers",     "norm_topk_prob",
                                     "router_aux_loss_coef"};
  auto qwen2_moe = router, qwen3_moe = router;
  qwen2_moe.insert({"shared_expert_intermediate_size", "qkv_bias"});
  qwen3_moe.insert("num_local_experts");
  const std::map<std::string, std::set<std::string>> own{
      {"deepseek-coder-1.3b", {"mlp_bias"}},
      {"Mistral-7B-v0.3", {}},
      {"Qwen2.5-7B", {}},
      {"Qwen3-8B", {}},
      {"Mixtral-8x7B",
       {"num_local_experts", "num_experts", "num_experts_per_tok", "router_aux_loss_coef",
        "router_jitter_noise"}},
      {"Qwen2-57B-A14B", qwen2_moe},
      {"Qwen3-30B-A3B", qwen3_moe},
  };

  for (const auto& [model, keys] : own) {
    for (const auto& [key, value] : keys_of_parts().items()) {
      if (keys.contains(key)) continue;
      const auto converted = from_huggingface(changed(model, {{key, value}}), {});
      ASSERT_TRUE(converted) << model << ": " << converted.error().message;
      EXPECT_THAT(converted->passed_over, ElementsAre(key)) << model;
      EXPECT_THAT(converted->warnings, Contains(AllOf(HasSubstr("of other models"), HasSubstr(": " + key))));
      expect_the_model(model, {{key, value}});
    }
  }
}

TEST(KeysOfOtherModels, ThatSayNothingAreNotMentioned) {
  const Json nothing = {{"num_nextn_predict_layers", 0},    {"mlp_bias", false},      {"qkv_bias", false},
                        {"mlp_only_layers", Json::array()}, {"q_lora_rank", nullptr}, {"use_qk_norm", false}};

  const auto converted = from_huggingface(changed("Qwen3-8B", nothing), {});

  ASSERT_TRUE(converted) << converted.error().message;
  EXPECT_THAT(converted->passed_over, IsEmpty());
}

TEST(NamesOfOneNumber, MustAgree) {
  EXPECT_EQ(convert(with(without(published("Mixtral-8x7B"), "num_local_experts"), "num_experts", "6"))
                .transformer.num_moe_experts,
            6);
  EXPECT_EQ(convert(with(without(published("Qwen3-30B-A3B"), "num_experts"), "num_local_experts", "64"))
                .transformer.num_moe_experts,
            64);
  EXPECT_EQ(convert(with(published("GLM-4.5-Air"), "num_local_experts", "128")).transformer.num_moe_experts,
            128);
  for (const auto& [model, key] :
       {std::pair{"Mixtral-8x7B", "num_experts"}, std::pair{"Qwen3-30B-A3B", "num_local_experts"},
        std::pair{"DeepSeek-V3", "num_local_experts"}, std::pair{"GLM-4.5-Air", "num_local_experts"},
        std::pair{"DeepSeek-V3", "num_mtp_layers"}, std::pair{"GLM-4.5-Air", "num_mtp_layers"}})
    EXPECT_THAT(refusal(with(published(model), key, "5")),
                AllOf(HasSubstr(key), HasSubstr("names of one number")))
        << model;
}

TEST(Quantization, ThatCannotBeReadIsRefusedByName) {
  for (const char* method : {"gptq", "awq", "bitsandbytes", "compressed-tensors", "mxfp4"}) {
    const Json values = {{"quantization_config", {{"quant_method", method}, {"bits", 4}}}};
    EXPECT_THAT(refusal(changed("Qwen3-8B", values)), HasSubstr("quantization_config")) << method;
  }
}

TEST(Architectures, AreKnownByTheNamesThatWrappersGiveThem) {
  for (const char* names :
       {R"(["FSDPQwen3ForCausalLM"])", R"(["FlaxQwen3ForCausalLM"])", R"(["TFQwen3ForCausalLM"])",
        R"(["FSDPQwen3ForCausalLM", "Qwen3ForCausalLM"])", "null", "[]"}) {
    const auto text = with(published("Qwen3-8B"), "architectures", names);
    EXPECT_EQ(convert(text).architecture, Architecture::qwen3) << names;
  }
  EXPECT_EQ(convert(without(published("Qwen3-8B"), "architectures")).architecture, Architecture::qwen3);
  EXPECT_EQ(convert(without(published("Qwen3-8B"), "model_type")).architecture, Architecture::qwen3);
  for (const char* other : {"LlavaQwen3ForCausalLM", "FSDPGemma2ForCausalLM", "FSDP", "Qwen3Model", ""}) {
    const auto text = with(published("Qwen3-8B"), "architectures", "[\"" + std::string(other) + "\"]");
    EXPECT_THAT(refusal(text), HasSubstr("architecture '")) << other;
  }
}

TEST(Architectures, ThatDisagreeWithTheModelTypeAreRefused) {
  EXPECT_THAT(refusal(with(published("Qwen3-8B"), "model_type", R"("mistral")")),
              AllOf(HasSubstr("'model_type' and 'architectures' disagree"), HasSubstr("mistral")));
  const auto neither = without(without(published("Qwen3-8B"), "architectures"), "model_type");
  EXPECT_THAT(refusal(neither), HasSubstr("key 'architectures' is missing"));
  EXPECT_THAT(refusal(with(without(published("Qwen3-8B"), "architectures"), "model_type", R"("gemma2")")),
              HasSubstr("model_type 'gemma2'"));
}

// Versions of transformers read different ones.
TEST(RotarySettings, ThatDisagreeAreRefused) {
  const Json linear = {{"rope_type", "linear"}, {"factor", 4.0}}, plain = {{"rope_type", "default"}};
  const std::vector<Json> cases{
      {{"rope_theta", 3000.0}, {"rope_parameters", {{"rope_theta", 5000.0}, {"rope_type", "default"}}}},
      {{"rope_theta", 3000.0}, {"rope_scaling", {{"rope_theta", 5000.0}, {"rope_type", "default"}}}},
      {{"rope_scaling", linear}, {"rope_parameters", plain}},
      {{"rope_scaling", linear}, {"rope_parameters", {{"rope_type", "linear"}, {"factor", 8.0}}}},
      {{"rope_scaling", {{"type", "linear"}, {"rope_type", "default"}, {"factor", 4.0}}}},
      {{"rope_scaling", {{"type", "linear"}, {"rope_type", "llama3"}, {"factor", 4.0}}}},
      {{"rope_scaling", {{"factor", 4.0}}}},
      {{"partial_rotary_factor", 1.0}, {"rope_parameters", {{"partial_rotary_factor", 0.5}}}},
      {{"original_max_position_embeddings", 4096},
       {"rope_scaling",
        {{"rope_type", "llama3"},
         {"factor", 8.0},
         {"low_freq_factor", 1.0},
         {"high_freq_factor", 4.0},
         {"original_max_position_embeddings", 8192}}}},
  };

  for (const auto& values : cases)
    EXPECT_THAT(refusal(changed("Qwen3-8B", values)), testing::ContainsRegex("rope_|rotary|original_max"))
        << values;
}

TEST(RotarySettings, ThatSayTheSameTwiceAreOne) {
  const Json linear = {{"rope_type", "linear"}, {"factor", 4.0}};
  auto newer = linear;
  newer["rope_theta"] = 1e6;
  const auto wanted = convert(changed("Qwen3-8B", {{"rope_scaling", linear}}));
  const std::vector<Json> same{
      {{"rope_scaling", {{"type", "linear"}, {"factor", 4}}}},
      {{"rope_scaling", {{"type", "linear"}, {"rope_type", "linear"}, {"factor", 4.0}}}},
      {{"rope_scaling", linear}, {"rope_parameters", newer}},
      {{"rope_scaling", nullptr}, {"rope_parameters", newer}, {"rope_theta", nullptr}},
      {{"rope_scaling", Json::object()}, {"rope_parameters", newer}},
  };

  for (const auto& values : same)
    EXPECT_EQ(convert(changed("Qwen3-8B", values)).builder, wanted.builder) << values;
  for (const Json& none : {Json{{"rope_type", "default"}}, Json{{"type", "default"}, {"factor", 1.0}},
                           Json{{"rope_type", "linear"}, {"factor", 1.0}}, Json::object()})
    expect_the_model("Qwen3-8B", {{"rope_scaling", none}});
}

TEST(NestedKeys, ThatDifferFromTheRootAreRefused) {
  EXPECT_THAT(refusal(with(published("Qwen3-VL-8B"), "rope_theta", "88.0")), HasSubstr("key 'rope_theta'"));
  EXPECT_THAT(refusal(with(published("Qwen3-VL-8B"), "hidden_size", "64")),
              HasSubstr("key 'hidden_size' is 64, and in text_config it is 4096"));
  EXPECT_EQ(convert(with(published("Qwen3-VL-8B"), "hidden_size", "4096")).transformer.hidden_size, 4096);
}

TEST(Windows, AreOnTheLayersThatTransformersChooses) {
  const auto windows = [](const std::string& model, const Json& values) {
    const auto config = convert(changed(model, values)).transformer;
    auto all = config.window_size;
    all.insert(all.end(), config.window_attn_skip_freq.begin(), config.window_attn_skip_freq.end());
    return all;
  };
  const Json asked = {{"use_sliding_window", true}, {"sliding_window", 100}, {"num_hidden_layers", 4}};
  const auto with_more = [&](const Json& more) {
    auto all = asked;
    all.update(more);
    return all;
  };

  EXPECT_THAT(windows("Mistral-7B-v0.3", {{"sliding_window", 8}}), ElementsAre(7, 0));
  EXPECT_THAT(windows("Mixtral-8x7B", {{"sliding_window", 8}}), ElementsAre(7, 0));
  EXPECT_THAT(windows("Qwen2.5-7B", with_more({{"max_window_layers", 3}})), ElementsAre(99, 0, 0, 0, 0, 1));
  EXPECT_THAT(windows("Qwen2.5-7B", with_more({{"max_window_layers", 0}})), ElementsAre(99, 0));
  EXPECT_THAT(windows("Qwen2.5-7B", with_more({{"max_window_layers", 4}})), IsEmpty());
  EXPECT_THAT(windows("Qwen2-57B-A14B", with_more({{"max_window_layers", 3}})),
              ElementsAre(99, 0, 1, 0, 1, 0));
  EXPECT_THAT(windows("Qwen3-30B-A3B", asked), ElementsAre(99, 0));
  EXPECT_THAT(
      windows("Qwen3-8B",
              with_more({{"layer_types",
                          {"full_attention", "sliding_attention", "full_attention", "sliding_attention"}}})),
      ElementsAre(99, 0, 0, 1, 0, 1));
  EXPECT_THAT(windows("Qwen3-8B", {{"sliding_window", 100}}), IsEmpty());
  EXPECT_THAT(convert(without(published("Mistral-7B-v0.3"), "sliding_window")).transformer.window_size,
              ElementsAre(4095, 0));
}

// A Llama trains without a window in transformers and generates with a cache of that length.
TEST(Windows, OfAClassWithoutThemAreRefusedWithAdvice) {
  for (const char* key : {"sliding_window", "attention_chunk_size"})
    EXPECT_THAT(
        refusal(changed("deepseek-coder-1.3b", {{key, 64}})),
        AllOf(HasSubstr("generates with a cache of 64"), HasSubstr("--key " + std::string(key) + "=null")));
  EXPECT_EQ(refusal(changed("Qwen3-8B", {{"attention_chunk_size", 64}})), "no error");
  EXPECT_EQ(refusal(changed("Qwen2-57B-A14B", {{"attention_chunk_size", 64}})), "no error");
}

TEST(Windows, ComeBackAsTheConfigJsonThatSaidThem) {
  const Json values = {{"use_sliding_window", true},
                       {"sliding_window", 100},
                       {"num_hidden_layers", 4},
                       {"max_window_layers", 2}};
  for (const char* name : {"Qwen2.5-7B", "Qwen3-8B", "Qwen2-57B-A14B", "Qwen3-30B-A3B"}) {
    const auto model = convert(changed(name, values));

    const auto again = to_huggingface(model);

    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(convert(*again), model) << name;
  }
}

TEST(Windows, OfContradictoryKeysAreRefused) {
  EXPECT_THAT(refusal(changed("Qwen3-8B", {{"layer_types", {"sliding_attention"}}})),
              HasSubstr("layer_types"));
  EXPECT_THAT(refusal(changed("Qwen3-8B", {{"use_sliding_window", true},
                                           {"sliding_window", 8},
                                           {"layer_types", {"sliding_attention"}}})),
              HasSubstr("1 entries for 36 layers"));
  EXPECT_THAT(refusal(changed("Mistral-7B-v0.3", {{"sliding_window", 8}, {"use_sliding_window", false}})),
              HasSubstr("use_sliding_window"));
  EXPECT_THAT(refusal(changed("Mistral-7B-v0.3", {{"sliding_window", 0}})), HasSubstr("sliding_window"));
}

TEST(Limits, AreForCallersThatKnowTheSequenceLength) {
  ConvertOptions options;
  options.takes_limits = true;
  const auto limits = [&](const std::string& model, const Json& values) {
    std::string text;
    const auto converted = from_huggingface(changed(model, values), options);
    EXPECT_TRUE(converted) << converted.error().message;
    for (const auto& [key, positions] : converted->limits) text += fmt::format("{} {};", key, positions);
    return text;
  };

  EXPECT_EQ(limits("deepseek-coder-1.3b", {{"sliding_window", 64}}), "sliding_window 64;");
  EXPECT_EQ(limits("deepseek-coder-1.3b", {{"attention_chunk_size", 99}}), "attention_chunk_size 99;");
  EXPECT_EQ(limits("Mistral-7B-v0.3", {{"sliding_window", 64}}), "sliding_window 64;");
  EXPECT_EQ(limits("Qwen3-8B", {{"sliding_window", 64}}), "");
  EXPECT_EQ(limits("Qwen3-8B", {{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 4.0}}}}),
            "rope_scaling 40960;");
  EXPECT_EQ(limits("Qwen3-8B",
                   {{"rope_scaling",
                     {{"type", "dynamic"}, {"factor", 4.0}, {"original_max_position_embeddings", 512}}}}),
            "rope_scaling 512;");
}

TEST(ModelConfig, OfAnEarlierVersionHasNoWindows) {
  const auto model = convert(published("Qwen3-8B"));
  const auto older = without(without(to_text(model), "transformer_config.window_size"),
                             "transformer_config.window_attn_skip_freq");

  const auto read = parse_model_config(older);

  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, model);
}

}  // namespace
}  // namespace troupe::core
