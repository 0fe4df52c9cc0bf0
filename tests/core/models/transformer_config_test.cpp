#include "core/models/transformer_config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace troupe::core {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

TransformerConfig dense() {
  TransformerConfig config;
  config.num_layers = 4;
  config.hidden_size = 64;
  config.num_attention_heads = 8;
  config.add_bias_linear = false;
  return config;
}

TransformerConfig sparse() {
  auto config = dense();
  config.num_moe_experts = 8;
  config.moe_ffn_hidden_size = 32;
  config.moe_token_dispatcher_type = "alltoall";
  return config;
}

TEST(Complete, DerivesWhatIsNotSaid) {
  auto config = dense();
  config.tensor_model_parallel_size = 2;
  config.pipeline_model_parallel_size = 4;
  config.pipeline_dtype = DType::bf16;
  config.params_dtype = DType::bf16;

  ASSERT_TRUE(complete(config).has_value());

  EXPECT_EQ(config.ffn_hidden_size, 256);
  EXPECT_EQ(config.kv_channels, 8);
  EXPECT_EQ(config.num_query_groups, 8);
  EXPECT_EQ(config.expert_tensor_parallel_size, 2);
  EXPECT_EQ(config.autocast_dtype, DType::bf16);
  EXPECT_EQ(config.microbatch_group_size_per_vp_stage, 4);
}

TEST(Complete, WarnsWhenExpertsGetTheWidthOfDenseLayers) {
  auto config = sparse();
  config.moe_ffn_hidden_size.reset();

  const auto warnings = complete(config);

  EXPECT_EQ(config.moe_ffn_hidden_size, 256);
  EXPECT_THAT(warnings.value(), testing::ElementsAre(HasSubstr("moe_ffn_hidden_size")));
}

TEST(Complete, WarnsOfMissingRouterDtypeAndSequenceParallelism) {
  auto config = sparse();
  config.num_moe_experts = 32;
  config.expert_model_parallel_size = 2;
  config.tensor_model_parallel_size = 2;

  EXPECT_THAT(complete(config).value(),
              testing::ElementsAre(HasSubstr("moe_router_dtype"), HasSubstr("sequence_parallel")));
}

using Change = std::function<void(TransformerConfig&)>;

/// Each rule: what breaks it, and the field that is named.
TEST(Complete, RefusesWhatMegatronRefuses) {
  struct Rule {
    TransformerConfig start;
    Change change;
    std::string named;
  };
  const std::vector<Rule> rules{
      {dense(), [](auto& c) { c.tensor_model_parallel_size = 3; }, "num_attention_heads"},
      {dense(),
       [](auto& c) { c.num_attention_heads = 12, c.num_query_groups = 3, c.tensor_model_parallel_size = 2; },
       "num_query_groups"},
      {dense(), [](auto& c) { c.sequence_parallel = true; }, "sequence_parallel"},
      {dense(), [](auto& c) { c.pipeline_model_parallel_size = 2; }, "pipeline_dtype"},
      {dense(), [](auto& c) { c.fp16 = c.bf16 = true; }, "fp16"},
      {dense(), [](auto& c) { c.expert_model_parallel_size = 2; }, "expert_model_parallel_size"},
      {dense(), [](auto& c) { c.moe_ffn_hidden_size = 8; }, "moe_ffn_hidden_size"},
      {sparse(), [](auto& c) { c.num_moe_experts = 0; }, "num_moe_experts"},
      {sparse(), [](auto& c) { c.moe_shared_expert_intermediate_size = 0; },
       "moe_shared_expert_intermediate_size"},
      {sparse(),
       [](auto& c) {
         c.moe_shared_expert_intermediate_size = 8, c.moe_shared_expert_overlap = true,
         c.moe_token_dispatcher_type = "allgather";
       },
       "moe_shared_expert_overlap"},
      {sparse(), [](auto& c) { c.moe_router_enable_expert_bias = true; }, "moe_router_enable_expert_bias"},
      {sparse(), [](auto& c) { c.moe_router_topk = 1; }, "moe_router_pre_softmax"},
      {sparse(), [](auto& c) { c.moe_router_topk = 9; }, "moe_router_topk"},
      {sparse(), [](auto& c) { c.add_bias_linear = true, c.tensor_model_parallel_size = 2; },
       "add_bias_linear"},
      {sparse(), [](auto& c) { c.moe_token_dispatcher_type = "allgather", c.variable_seq_lengths = true; },
       "variable_seq_lengths"},
      {sparse(),
       [](auto& c) {
         c.moe_layer_freq = {1, 1};
       },
       "moe_layer_freq"},
      {dense(), [](auto& c) { c.bias_activation_fusion = true, c.activation_func = "relu"; },
       "bias_activation_fusion"},
      {dense(), [](auto& c) { c.multi_latent_attention = c.apply_rope_fusion = true, c.rope_type = "rope"; },
       "apply_rope_fusion"},
      {dense(), [](auto& c) { c.multi_latent_attention = c.rotary_interleaved = true; },
       "rotary_interleaved"},
      {dense(), [](auto& c) { c.num_layers_in_first_pipeline_stage = 0; }, "first_pipeline_stage"},
      {dense(),
       [](auto& c) {
         c.num_layers_in_first_pipeline_stage = 1, c.pipeline_dtype = DType::f32,
         c.pipeline_model_parallel_size = 3;
       },
       "3 layers for 2 stages"},
      {dense(), [](auto& c) { c.num_layers = 0; }, "num_layers"},
      {dense(), [](auto& c) { c.attention_backend = "other"; }, "attention_backend"},
  };

  for (const auto& rule : rules) {
    auto config = rule.start;
    ASSERT_TRUE(complete(config).has_value());
    config = rule.start;
    rule.change(config);
    const auto refused = complete(config);
    ASSERT_FALSE(refused.has_value()) << rule.named;
    EXPECT_THAT(refused.error().message, HasSubstr(rule.named));
  }
}

TEST(Complete, TakesWhatIsJustAllowed) {
  const std::vector<std::pair<TransformerConfig, Change>> cases{
      {dense(), [](auto& c) { c.num_query_groups = 2, c.tensor_model_parallel_size = 4; }},
      {sparse(), [](auto& c) { c.moe_router_topk = 1, c.moe_router_pre_softmax = true; }},
      {sparse(), [](auto& c) { c.moe_router_topk = 1, c.moe_router_load_balancing_type = "sinkhorn"; }},
      {sparse(),
       [](auto& c) { c.moe_router_enable_expert_bias = true, c.moe_router_score_function = "sqrtsoftplus"; }},
      {sparse(),
       [](auto& c) {
         c.moe_shared_expert_intermediate_size = 8, c.moe_shared_expert_overlap = true,
         c.moe_token_dispatcher_type = "flex";
       }},
      {dense(),
       [](auto& c) {
         c.num_layers_in_first_pipeline_stage = 2, c.pipeline_dtype = DType::f32,
         c.pipeline_model_parallel_size = 3;
       }},
      // Not compared with each other here: the placement of layers does that.
      {dense(),
       [](auto& c) { c.num_layers = 61, c.pipeline_dtype = DType::f32, c.pipeline_model_parallel_size = 2; }},
  };

  for (auto [config, change] : cases) {
    change(config);
    const auto good = complete(config);
    EXPECT_TRUE(good.has_value()) << good.error().message;
  }
}

TEST(SetField, TakesJsonOfTheFieldsKind) {
  auto config = dense();

  EXPECT_TRUE(set_field(config, "num_layers", "7").has_value());
  EXPECT_TRUE(set_field(config, "moe_router_dtype", "fp32").has_value());
  EXPECT_TRUE(set_field(config, "mrope_section", "[1, 2]").has_value());
  EXPECT_TRUE(set_field(config, "params_dtype", "\"float16\"").has_value());

  EXPECT_EQ(config.num_layers, 7);
  EXPECT_EQ(config.moe_router_dtype, "fp32");
  EXPECT_THAT(config.mrope_section, testing::ElementsAre(1, 2));
  EXPECT_EQ(config.params_dtype, DType::f16);
  EXPECT_EQ(set_field(config, "num_layers", "true").error().code, Errc::invalid_argument);
  EXPECT_EQ(set_field(config, "num_layers", "-1").error().code, Errc::invalid_argument);
  EXPECT_EQ(set_field(config, "num_layer", "7").error().code, Errc::not_found);
}

}  // namespace
}  // namespace troupe::core
