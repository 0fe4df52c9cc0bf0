#include "apps/gpt/pretrained/huggingface_config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "apps/files/model_companions.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

/// Sizes that are all different; `more` adds keys and replaces them.
std::string config_of(const std::string& architecture, const Json& more = Json::object()) {
  Json json = {{"architectures", {architecture}},
               {"num_hidden_layers", 3},
               {"hidden_size", 24},
               {"num_attention_heads", 6},
               {"num_key_value_heads", 2},
               {"intermediate_size", 40},
               {"max_position_embeddings", 128},
               {"vocab_size", 97},
               {"rms_norm_eps", 1e-6},
               {"hidden_act", "silu"}};
  json.update(more);
  return json.dump();
}

TEST(HuggingFaceConfig, OfALlamaSaysItsSizes) {
  const auto read =
      read_huggingface_config(config_of("LlamaForCausalLM", {{"rope_theta", 5e5}, {"eos_token_id", {7, 8}}}));

  ASSERT_TRUE(read) << read.error().message;
  const ModelConfig& model = read->model;
  EXPECT_EQ(model.layers, 3U);
  EXPECT_EQ(model.width, 24U);
  EXPECT_EQ(model.heads, 6U);
  EXPECT_EQ(model.key_heads(), 2U);
  EXPECT_EQ(model.head_size(), 4U);
  EXPECT_EQ(model.feed_forward, 40U);
  EXPECT_EQ(model.context, 128U);
  EXPECT_EQ(model.vocabulary, 97U);
  EXPECT_EQ(model.norm_epsilon, 1e-6);
  EXPECT_EQ(model.rope_base, 5e5);
  EXPECT_FALSE(model.tied_embeddings);
  EXPECT_FALSE(model.query_key_value_bias || model.attention_output_bias || model.query_key_norm);
  EXPECT_EQ(model.rope_scaling.kind, RotaryScaling::Kind::none);
  EXPECT_EQ(read->end_of_text, 7);
}

TEST(HuggingFaceConfig, SaysWhichBiasesAndNormsAnArchitectureHas) {
  const auto llama =
      read_huggingface_config(config_of("LlamaForCausalLM", {{"attention_bias", true}})).value();
  const auto qwen2 = read_huggingface_config(config_of("Qwen2ForCausalLM")).value();
  const auto qwen3 = read_huggingface_config(
                         config_of("Qwen3ForCausalLM", {{"head_dim", 10}, {"tie_word_embeddings", true}}))
                         .value();
  const auto mistral =
      read_huggingface_config(config_of("MistralForCausalLM", {{"sliding_window", nullptr}})).value();

  EXPECT_TRUE(llama.model.query_key_value_bias && llama.model.attention_output_bias);
  EXPECT_TRUE(qwen2.model.query_key_value_bias && !qwen2.model.attention_output_bias);
  EXPECT_TRUE(qwen3.model.query_key_norm && !qwen3.model.query_key_value_bias);
  EXPECT_TRUE(qwen3.model.tied_embeddings);
  EXPECT_EQ(qwen3.model.head_size(), 10U);
  EXPECT_FALSE(mistral.model.query_key_value_bias || mistral.model.query_key_norm);
}

TEST(HuggingFaceConfig, SaysWhichKeysOfOtherModelsArePassedOver) {
  const auto plain = read_huggingface_config(config_of("LlamaForCausalLM")).value();
  const auto read = read_huggingface_config(config_of("LlamaForCausalLM", {{"num_experts", 8}})).value();

  EXPECT_EQ(plain.passed_over, "");
  EXPECT_THAT(read.passed_over, HasSubstr("LlamaForCausalLM does not read, are passed over: num_experts"));
  EXPECT_EQ(read.model.experts.count, 0U);
}

TEST(HuggingFaceConfig, SaysWhichExpertsAnArchitectureHas) {
  const auto experts = [](const std::string& architecture, const Json& more) {
    return read_huggingface_config(config_of(architecture, more)).value().model.experts;
  };

  const auto mixtral = experts("MixtralForCausalLM", {{"num_local_experts", 4}, {"num_experts_per_tok", 3}});
  EXPECT_EQ(mixtral.count, 4U);
  EXPECT_EQ(mixtral.choices, 3U);
  EXPECT_EQ(mixtral.feed_forward, 40U);
  EXPECT_EQ(mixtral.shared_feed_forward, 0U);
  EXPECT_FALSE(mixtral.score_before_choice);
  EXPECT_EQ(mixtral.balance, 0);
  EXPECT_EQ(mixtral.names, ExpertConfig::Names::mixtral);

  const Json qwen = {{"num_experts", 8}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 12}};
  auto two = qwen;
  two["shared_expert_intermediate_size"] = 20;
  const auto qwen2 = experts("Qwen2MoeForCausalLM", two);
  EXPECT_EQ(qwen2.feed_forward, 12U);
  EXPECT_EQ(qwen2.shared_feed_forward, 20U);
  EXPECT_TRUE(qwen2.shared_gate);
  EXPECT_TRUE(qwen2.score_before_choice);
  EXPECT_FALSE(read_huggingface_config(config_of("Qwen2MoeForCausalLM", two))->model.attention_output_bias);

  auto three = qwen;
  three["norm_topk_prob"] = true;
  three["mlp_only_layers"] = {1};
  const auto qwen3 = experts("Qwen3MoeForCausalLM", three);
  EXPECT_FALSE(qwen3.score_before_choice);
  EXPECT_EQ(qwen3.dense_layers, std::vector<std::size_t>{1});
  EXPECT_TRUE(qwen3.in_layer(0) && !qwen3.in_layer(1) && qwen3.in_layer(2));
}

TEST(HuggingFaceConfig, SaysHowPositionsAreScaled) {
  const auto linear =
      read_huggingface_config(
          config_of("LlamaForCausalLM", {{"rope_scaling", {{"type", "linear"}, {"factor", 4.0}}}}))
          .value();
  const auto llama3 =
      read_huggingface_config(config_of("LlamaForCausalLM", {{"rope_scaling",
                                                              {{"rope_type", "llama3"},
                                                               {"factor", 32.0},
                                                               {"low_freq_factor", 1.0},
                                                               {"high_freq_factor", 4.0},
                                                               {"original_max_position_embeddings", 8192}}}}))
          .value();

  EXPECT_EQ(linear.model.rope_scaling.kind, RotaryScaling::Kind::linear);
  EXPECT_EQ(linear.model.rope_scaling.factor, 4);
  EXPECT_EQ(llama3.model.rope_scaling.kind, RotaryScaling::Kind::llama3);
  EXPECT_EQ(llama3.model.rope_scaling.factor, 32);
}

RotaryScaling scaling_of(const Json& scaling, const Json& more = Json::object()) {
  Json keys = {{"rope_scaling", scaling}};
  keys.update(more);
  const auto read = read_huggingface_config(config_of("LlamaForCausalLM", keys));
  EXPECT_TRUE(read) << read.error().message;
  return read ? read->model.rope_scaling : RotaryScaling{};
}

// With 128 positions. The logarithms are those of the formula in transformers' documentation.
TEST(HuggingFaceConfig, SaysHowYarnScales) {
  const auto least = scaling_of({{"type", "yarn"}, {"factor", 4.0}});
  EXPECT_EQ(least.kind, RotaryScaling::Kind::yarn);
  EXPECT_EQ(least.original_context, 128);
  EXPECT_TRUE(least.fast_turns == 32 && least.slow_turns == 1 && least.whole_pairs);
  EXPECT_DOUBLE_EQ(least.attention_factor, 0.1 * std::log(4.0) + 1);

  const auto most = scaling_of({{"rope_type", "yarn"},
                                {"factor", 4.0},
                                {"original_max_position_embeddings", 32},
                                {"beta_fast", 20},
                                {"beta_slow", 2},
                                {"truncate", false},
                                {"mscale", 0.5},
                                {"mscale_all_dim", 2.0},
                                {"attn_factor", 0.878},
                                {"finetuned", true}});
  EXPECT_EQ(most.original_context, 32);
  EXPECT_TRUE(most.fast_turns == 20 && most.slow_turns == 2 && !most.whole_pairs);
  EXPECT_DOUBLE_EQ(most.attention_factor, (0.05 * std::log(4.0) + 1) / (0.2 * std::log(4.0) + 1));

  const Json said = {{"type", "yarn"}, {"factor", nullptr}, {"attention_factor", 1.5}};
  const auto quotient = scaling_of(said, {{"original_max_position_embeddings", 32}});
  EXPECT_EQ(quotient.factor, 4);
  EXPECT_EQ(quotient.attention_factor, 1.5);
}

TEST(HuggingFaceConfig, SaysHowLongropeScales) {
  const Json factors = {{"type", "su"}, {"short_factor", {1.0, 1.5}}, {"long_factor", {2, 3.5}}};

  const auto read = scaling_of(factors, {{"original_max_position_embeddings", 32}});

  EXPECT_EQ(read.kind, RotaryScaling::Kind::longrope);
  EXPECT_EQ(read.original_context, 32);
  EXPECT_EQ(read.short_factors, (std::vector<double>{1, 1.5}));
  EXPECT_EQ(read.long_factors, (std::vector<double>{2, 3.5}));
  EXPECT_DOUBLE_EQ(read.attention_factor, std::sqrt(1 + std::log(4.0) / std::log(32.0)));
}

TEST(HuggingFaceConfig, RefusesScalingsThatCannotBeMeant) {
  const Json longrope = {{"type", "longrope"}, {"short_factor", {1.0, 1.5}}, {"long_factor", {2, 3.5}}};
  const Json yarn = {{"type", "yarn"}, {"factor", 4.0}};
  const auto message = [](Json scaling, const char* key, const Json& value) {
    scaling[key] = value;
    return read_huggingface_config(config_of("LlamaForCausalLM", {{"rope_scaling", scaling}}))
        .error()
        .message;
  };
  for (const auto& [scaling, key, value] : {
           std::tuple(yarn, "factor", Json(0.5)),
           std::tuple(yarn, "factor", Json("four")),
           std::tuple(yarn, "beta_fast", Json(0.5)),
           std::tuple(yarn, "beta_slow", Json(-1)),
           std::tuple(yarn, "attention_factor", Json(0)),
           std::tuple(yarn, "original_max_position_embeddings", Json(0)),
           std::tuple(yarn, "short_factor", Json({1.0, 1.5})),
           std::tuple(longrope, "short_factor", Json({1.0})),
           std::tuple(longrope, "long_factor", Json({1.0, -1.0})),
           std::tuple(longrope, "long_factor", Json()),
           std::tuple(longrope, "short_mscale", Json(1.2)),
           std::tuple(longrope, "original_max_position_embeddings", Json(1)),
       })
    EXPECT_THAT(message(scaling, key, value), HasSubstr(key)) << value;
}

TEST(HuggingFaceConfig, RefusesByNameWhatTheTrainerCannotDo) {
  const auto message = [](const std::string& architecture, const Json& more) {
    return read_huggingface_config(config_of(architecture, more)).error().message;
  };

  EXPECT_THAT(message("Qwen3ForTokenClassification", Json::object()),
              HasSubstr("found Qwen3ForTokenClassification"));
  EXPECT_THAT(message("LlamaForCausalLM", {{"rope_scaling", {{"type", "proportional"}, {"factor", 4.0}}}}),
              HasSubstr("'proportional' is not a scaling"));
  EXPECT_THAT(message("LlamaForCausalLM", {{"attention_dropout", 0.3}}),
              HasSubstr("key 'attention_dropout' is 0.3, and the trainer has no dropout"));
  EXPECT_THAT(message("LlamaForCausalLM", {{"hidden_dropout", 0.1}}), HasSubstr("hidden_dropout"));
  EXPECT_THAT(message("LlamaForCausalLM", {{"resid_pdrop", 0.1}}), HasSubstr("resid_pdrop"));
  EXPECT_THAT(message("MixtralForCausalLM",
                      {{"num_local_experts", 4}, {"num_experts_per_tok", 2}, {"output_router_logits", true}}),
              HasSubstr("output_router_logits"));
  EXPECT_THAT(message("Qwen3ForCausalLM", {{"quantization_config", {{"quant_method", "fp8"}}}}),
              HasSubstr("weight_block_size"));
  EXPECT_THAT(message("LlamaForCausalLM", {{"mlp_bias", true}}), HasSubstr("mlp_bias"));
  EXPECT_THAT(message("GPT2LMHeadModel", Json::object()), HasSubstr("GPT2LMHeadModel"));
}

TEST(HuggingFaceConfig, SaysUpToWhichLengthTheTrainerAgrees) {
  const auto limit = [](const std::string& architecture, const Json& more) {
    const auto read = read_huggingface_config(config_of(architecture, more));
    EXPECT_TRUE(read) << read.error().message;
    return read->limits.empty() ? 0 : read->limits.front().positions;
  };

  EXPECT_EQ(limit("MistralForCausalLM", {{"sliding_window", 64}}), 64);
  EXPECT_EQ(limit("MistralForCausalLM", Json::object()), 4096);
  EXPECT_EQ(limit("LlamaForCausalLM", {{"sliding_window", 64}}), 64);
  EXPECT_EQ(limit("LlamaForCausalLM", {{"sliding_window", 128}}), 0);
  EXPECT_EQ(limit("Qwen2ForCausalLM", {{"sliding_window", 64}}), 0);
  EXPECT_EQ(limit("LlamaForCausalLM", {{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.0}}}}), 128);
}

bool are_equal(const ModelConfig& a, const ModelConfig& b) {
  const auto all = [](const ModelConfig& c) {
    return std::tuple(c.layers, c.heads, c.width, c.feed_forward, c.context, c.vocabulary, c.norm,
                      c.activation, c.tied_embeddings, c.rope_base, c.norm_epsilon, c.initial_deviation,
                      c.key_heads(), c.head_size(), c.query_key_value_bias, c.attention_output_bias,
                      c.query_key_norm, c.rope_scaling, c.experts.count, c.experts.choices,
                      c.experts.feed_forward, c.experts.shared_feed_forward, c.experts.shared_gate,
                      c.experts.score_before_choice, c.experts.dense_layers, c.experts.names);
  };
  return all(a) == all(b);
}

TEST(HuggingFaceConfig, ThatIsWrittenIsReadAsTheSameModel) {
  ModelConfig llama = preset("tiny").value();
  llama.rope_scaling = {.kind = RotaryScaling::Kind::llama3, .factor = 8};
  ModelConfig yarn = preset("tiny").value(), longrope = yarn;
  yarn.rope_scaling = {.kind = RotaryScaling::Kind::yarn,
                       .factor = 8,
                       .original_context = 8,
                       .fast_turns = 9,
                       .slow_turns = 2,
                       .whole_pairs = false,
                       .attention_factor = 1.25};
  longrope.rope_scaling = {.kind = RotaryScaling::Kind::longrope,
                           .original_context = 8,
                           .attention_factor = 1.25,
                           .short_factors = {1, 1.5, 2, 3},
                           .long_factors = {2, 3, 5, 7.5}};
  ModelConfig qwen2 = preset("demo").value();
  qwen2.query_key_value_bias = true;
  qwen2.key_value_heads = 2;
  ModelConfig qwen3 = preset("demo").value();
  qwen3.query_key_norm = true;
  qwen3.head_dimension = 48;
  qwen3.tied_embeddings = false;
  ModelConfig mixtral = preset("tiny").value();
  mixtral.experts = {.count = 4, .feed_forward = 32, .names = ExpertConfig::Names::mixtral};
  ModelConfig qwen2_moe = qwen2;
  qwen2_moe.experts = {.count = 3,
                       .feed_forward = 12,
                       .shared_feed_forward = 8,
                       .shared_gate = true,
                       .score_before_choice = true};
  ModelConfig qwen3_moe = qwen3;
  qwen3_moe.experts = {.count = 4, .choices = 3, .feed_forward = 12, .dense_layers = {0, 2}};

  for (const ModelConfig& config :
       {preset("tiny").value(), llama, yarn, longrope, qwen2, qwen3, mixtral, qwen2_moe, qwen3_moe}) {
    const auto text = write_huggingface_config(config, core::DType::f32);

    ASSERT_TRUE(text) << text.error().message;
    const auto read = read_huggingface_config(*text);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_TRUE(are_equal(read->model, config)) << *text;
  }
}

TEST(HuggingFaceConfig, CannotBeWrittenForWhatOnlyOurModelHas) {
  ModelConfig config = preset("tiny").value();
  config.norm = Norm::layer;

  const auto text = write_huggingface_config(config, core::DType::f32);

  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().code, core::Errc::invalid_argument);
  EXPECT_THAT(text.error().message, HasSubstr("layer norms"));

  config = preset("tiny").value();
  config.experts = {.count = 4, .feed_forward = 8, .names = ExpertConfig::Names::qwen};
  EXPECT_THAT(write_huggingface_config(config, core::DType::f32).error().message,
              HasSubstr("neither Mixtral nor a Qwen with experts"));
}

TEST(HuggingFaceConfig, KeepsAllButTheDtype) {
  const auto text =
      with_dtype(config_of("LlamaForCausalLM", {{"dtype", "bfloat16"}, {"my_key", 5}}), core::DType::f32)
          .value();
  const auto older = with_dtype(config_of("LlamaForCausalLM"), core::DType::bf16).value();

  const auto json = Json::parse(text);
  EXPECT_EQ(json["dtype"], "float32");
  EXPECT_EQ(json["my_key"], 5);
  EXPECT_FALSE(json.contains("torch_dtype"));
  EXPECT_EQ(Json::parse(older)["torch_dtype"], "bfloat16");
}

}  // namespace
}  // namespace troupe::apps::gpt
