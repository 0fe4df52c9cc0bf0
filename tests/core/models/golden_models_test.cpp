#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/models/model_config.hpp"
#include "tests/core/models/example_configs.hpp"

namespace troupe::core {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

/// Eight ranks.
ConvertOptions cut_in_two() {
  ConvertOptions options;
  options.mesh = {.tp = 2, .cp = 2, .pp = 2};
  return options;
}

struct Golden {
  std::string model;
  std::int64_t layers, hidden, heads, groups, ffn, head_dim;
  double epsilon;
  bool qkv_bias, qk_norm;
  std::int64_t vocab;
  double theta;
  std::int64_t positions;
};

void PrintTo(const Golden& golden, std::ostream* out) {
  *out << golden.model;
}

class GoldenModel : public testing::TestWithParam<Golden> {};

// Covers ranks-22.
TEST_P(GoldenModel, HasTheFieldsThatAllModelsHave) {
  const auto& golden = GetParam();

  const auto model = convert(published(golden.model), cut_in_two());

  const auto& config = model.transformer;
  EXPECT_EQ(config.num_layers, golden.layers);
  EXPECT_EQ(config.hidden_size, golden.hidden);
  EXPECT_EQ(config.num_attention_heads, golden.heads);
  EXPECT_EQ(config.num_query_groups, golden.groups);
  EXPECT_EQ(config.ffn_hidden_size, golden.ffn);
  EXPECT_EQ(config.kv_channels, golden.head_dim);
  EXPECT_EQ(config.layernorm_epsilon, golden.epsilon);
  EXPECT_EQ(config.attention_dropout, 0);
  EXPECT_EQ(config.hidden_dropout, 0);
  EXPECT_EQ(config.add_qkv_bias, golden.qkv_bias);
  EXPECT_EQ(config.qk_layernorm, golden.qk_norm);
  EXPECT_FALSE(config.add_bias_linear);
  EXPECT_EQ(config.activation_func, "silu");
  EXPECT_TRUE(config.gated_linear_unit);
  EXPECT_EQ(config.normalization, "RMSNorm");
  EXPECT_EQ(config.init_method_std, 0.02);
  EXPECT_EQ(config.moe_token_dispatcher_type, "alltoall");
  EXPECT_EQ(model.builder.vocab_size, golden.vocab);
  EXPECT_EQ(model.builder.rotary_base, golden.theta);
  EXPECT_EQ(model.builder.max_sequence_length, golden.positions);
  EXPECT_FALSE(model.builder.share_embeddings_and_output_weights);
}

// Covers ranks-22.
TEST_P(GoldenModel, HasTheFieldsOfTheMesh) {
  const auto config = convert(published(GetParam().model), cut_in_two()).transformer;

  EXPECT_EQ(config.tensor_model_parallel_size, 2);
  EXPECT_EQ(config.pipeline_model_parallel_size, 2);
  EXPECT_EQ(config.context_parallel_size, 2);
  EXPECT_EQ(config.expert_model_parallel_size, 1);
  EXPECT_EQ(config.expert_tensor_parallel_size, 2);
  EXPECT_EQ(config.virtual_pipeline_model_parallel_size, std::nullopt);
  EXPECT_EQ(config.microbatch_group_size_per_vp_stage, 2);
  EXPECT_TRUE(config.sequence_parallel);
  EXPECT_FALSE(config.overlap_p2p_comm);
  EXPECT_FALSE(config.batch_p2p_comm);
  EXPECT_TRUE(config.variable_seq_lengths);
  EXPECT_EQ(config.params_dtype, DType::bf16);
  EXPECT_EQ(config.pipeline_dtype, DType::bf16);
  EXPECT_EQ(config.autocast_dtype, DType::bf16);
  EXPECT_TRUE(config.bf16);
  EXPECT_FALSE(config.fp16);
  EXPECT_FALSE(config.use_cpu_initialization);
}

TEST_P(GoldenModel, ComesBackAsTheConfigItWas) {
  auto text = published(GetParam().model);
  const auto model = convert(text, cut_in_two());

  const auto back = to_huggingface(model);

  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(convert(*back, cut_in_two()), model);
}

TEST_P(GoldenModel, ReadsAsItWasWritten) {
  const auto model = convert(published(GetParam().model), cut_in_two());

  const auto read = parse_model_config(to_text(model));

  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, model);
}

// Values of the published files; head_dim is hidden_size / heads where a file has none.
INSTANTIATE_TEST_SUITE_P(
    Models, GoldenModel,
    testing::Values(
        Golden{"Qwen2.5-7B", 28, 3584, 28, 4, 18944, 128, 1e-6, true, false, 152064, 1e6, 131072},
        Golden{"Qwen3-8B", 36, 4096, 32, 8, 12288, 128, 1e-6, false, true, 151936, 1e6, 40960},
        Golden{"deepseek-coder-1.3b", 24, 2048, 16, 16, 5504, 128, 1e-6, false, false, 32256, 1e5, 16384},
        Golden{"Mistral-7B-v0.3", 32, 4096, 32, 8, 14336, 128, 1e-5, false, false, 32768, 1e6, 32768},
        Golden{"Qwen2-57B-A14B", 28, 3584, 28, 4, 18944, 128, 1e-6, true, false, 151936, 1e6, 131072},
        Golden{"Qwen3-30B-A3B", 48, 2048, 32, 4, 6144, 128, 1e-6, false, true, 151936, 1e6, 40960},
        Golden{"Mixtral-8x7B", 32, 4096, 32, 8, 14336, 128, 1e-5, false, false, 32000, 1e6, 32768},
        Golden{"DeepSeek-V3", 61, 7168, 128, 128, 18432, 56, 1e-6, false, true, 129280, 1e4, 163840},
        Golden{"MiMo-7B", 36, 4096, 32, 8, 11008, 128, 1e-5, true, false, 151680, 640000, 32768},
        Golden{"GLM-4.5-Air", 46, 4096, 96, 8, 10944, 128, 1e-5, true, false, 151552, 1e6, 131072},
        Golden{"Qwen2.5-VL-7B", 28, 3584, 28, 4, 18944, 128, 1e-6, true, false, 152064, 1e6, 128000},
        Golden{"Qwen3-VL-8B", 36, 4096, 32, 8, 12288, 128, 1e-6, false, true, 151936, 5e6, 262144},
        Golden{"Qwen3-VL-30B-A3B", 48, 2048, 32, 4, 6144, 128, 1e-6, false, true, 151936, 5e6, 262144}),
    [](const auto& instance) {
      std::string name = instance.param.model;
      std::erase_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
      return name;
    });

TEST(GoldenModels, TurnsLinearScalingIntoAnInterpolationFactor) {
  const auto builder = convert(published("deepseek-coder-1.3b")).builder;

  EXPECT_EQ(builder.seq_len_interpolation_factor, 4.0);
  EXPECT_FALSE(builder.rope_scaling);
}

TEST(GoldenModels, GivesQwen2ItsExperts) {
  const auto model = convert(published("Qwen2-57B-A14B"));

  const auto& config = model.transformer;
  EXPECT_EQ(config.num_moe_experts, 64);
  EXPECT_EQ(config.moe_router_topk, 8);
  EXPECT_EQ(config.moe_ffn_hidden_size, 2560);
  EXPECT_EQ(config.moe_shared_expert_intermediate_size, 20480);
  EXPECT_TRUE(config.moe_shared_expert_overlap);
  EXPECT_EQ(config.moe_aux_loss_coeff, 0.001);
  EXPECT_EQ(config.moe_router_load_balancing_type, "none");
  EXPECT_EQ(config.moe_router_score_function, "softmax");
  EXPECT_TRUE(config.moe_router_pre_softmax);
  EXPECT_EQ(config.moe_router_bias_update_rate, 0.001);
  EXPECT_TRUE(config.moe_grouped_gemm);
  EXPECT_TRUE(config.persist_layer_norm && config.bias_activation_fusion && config.bias_dropout_fusion);
  EXPECT_FALSE(config.apply_rope_fusion);
  EXPECT_THAT(config.moe_layer_freq, IsEmpty());
  EXPECT_TRUE(model.builder.shared_expert_gate);
  EXPECT_TRUE(model.builder.freeze_moe_router);
}

TEST(GoldenModels, GivesQwen3ItsExperts) {
  const auto model = convert(published("Qwen3-30B-A3B"));

  const auto& config = model.transformer;
  EXPECT_EQ(config.num_moe_experts, 128);
  EXPECT_EQ(config.moe_router_topk, 8);
  EXPECT_EQ(config.moe_ffn_hidden_size, 768);
  EXPECT_EQ(config.moe_shared_expert_intermediate_size, std::nullopt);
  EXPECT_EQ(config.moe_aux_loss_coeff, 0.001);
  EXPECT_EQ(config.moe_router_load_balancing_type, "none");
  EXPECT_EQ(config.moe_router_score_function, "softmax");
  EXPECT_FALSE(config.moe_router_pre_softmax);
  EXPECT_TRUE(config.moe_grouped_gemm);
  EXPECT_FALSE(model.builder.shared_expert_gate);
  EXPECT_TRUE(model.builder.freeze_moe_router);
}

// Covers ranks-23.
TEST(GoldenModels, GivesMixtralRoutingThatRenormalises) {
  const auto model = convert(published("Mixtral-8x7B"));

  const auto& config = model.transformer;
  EXPECT_EQ(config.num_moe_experts, 8);
  EXPECT_EQ(config.moe_router_topk, 2);
  EXPECT_EQ(config.moe_ffn_hidden_size, 14336);
  EXPECT_EQ(config.moe_shared_expert_intermediate_size, std::nullopt);
  EXPECT_FALSE(config.moe_shared_expert_overlap);
  EXPECT_EQ(config.moe_aux_loss_coeff, 0.02);
  EXPECT_EQ(config.moe_router_load_balancing_type, "none");
  EXPECT_FALSE(config.moe_router_pre_softmax);
  EXPECT_TRUE(config.apply_rope_fusion);
  EXPECT_TRUE(config.persist_layer_norm && config.bias_activation_fusion && config.bias_dropout_fusion);
  EXPECT_FALSE(model.builder.freeze_moe_router);
}

TEST(GoldenModels, GivesDeepSeekItsAttention) {
  const auto config = convert(published("DeepSeek-V3")).transformer;

  EXPECT_TRUE(config.multi_latent_attention);
  EXPECT_EQ(config.q_lora_rank, 1536);
  EXPECT_EQ(config.kv_lora_rank, 512);
  EXPECT_EQ(config.qk_head_dim, 128);
  EXPECT_EQ(config.qk_pos_emb_head_dim, 64);
  EXPECT_EQ(config.v_head_dim, 128);
  EXPECT_EQ(config.rope_type, "yarn");
  EXPECT_EQ(config.rotary_base, 1e4);
  EXPECT_EQ(config.rotary_scaling_factor, 40);
  EXPECT_EQ(config.original_max_position_embeddings, 4096);
  EXPECT_EQ(config.beta_fast, 32);
  EXPECT_EQ(config.beta_slow, 1);
  EXPECT_EQ(config.mscale, 1);
  EXPECT_EQ(config.mscale_all_dim, 1);
  EXPECT_EQ(config.attention_backend, "fused");
}

TEST(GoldenModels, GivesDeepSeekItsExperts) {
  const auto model = convert(published("DeepSeek-V3"));

  const auto& config = model.transformer;
  EXPECT_EQ(config.num_moe_experts, 256);
  EXPECT_EQ(config.moe_router_topk, 8);
  EXPECT_EQ(config.moe_router_num_groups, 8);
  EXPECT_EQ(config.moe_router_group_topk, 4);
  EXPECT_EQ(config.moe_ffn_hidden_size, 2048);
  EXPECT_EQ(config.moe_shared_expert_intermediate_size, 2048);
  EXPECT_TRUE(config.moe_shared_expert_overlap);
  EXPECT_EQ(config.moe_aux_loss_coeff, 0.001);
  EXPECT_EQ(config.moe_router_load_balancing_type, "seq_aux_loss");
  EXPECT_EQ(config.moe_router_score_function, "sigmoid");
  EXPECT_TRUE(config.moe_router_pre_softmax);
  EXPECT_TRUE(config.moe_router_enable_expert_bias);
  EXPECT_EQ(config.moe_router_bias_update_rate, 0.001);
  EXPECT_EQ(config.moe_router_dtype, "fp64");
  EXPECT_EQ(config.moe_router_topk_scaling_factor, 2.5);
  EXPECT_TRUE(config.disable_bf16_reduced_precision_matmul);
  EXPECT_EQ(config.mtp_num_layers, 0);
  EXPECT_EQ(config.mtp_loss_scaling_factor, 0.1);
  EXPECT_TRUE(model.builder.freeze_moe_router);
  ASSERT_THAT(config.moe_layer_freq, SizeIs(61));
  for (std::size_t layer = 0; layer < 61; ++layer) EXPECT_EQ(config.moe_layer_freq[layer], layer < 3 ? 0 : 1);
}

TEST(GoldenModels, TakesRotaryWidthAsHeadDimOfDeepSeek) {
  ConvertOptions options;
  options.class_defaults = true;

  EXPECT_EQ(convert(published("DeepSeek-V3"), options).transformer.kv_channels, 64);
}

// Covers ranks-23.
TEST(GoldenModels, GivesGlmItsExperts) {
  const auto model = convert(published("GLM-4.5-Air"));

  const auto& config = model.transformer;
  EXPECT_EQ(config.num_moe_experts, 128);
  EXPECT_EQ(config.moe_ffn_hidden_size, 1408);
  EXPECT_EQ(config.moe_shared_expert_intermediate_size, 1408);
  EXPECT_EQ(config.moe_router_score_function, "sigmoid");
  EXPECT_TRUE(config.moe_router_enable_expert_bias);
  EXPECT_EQ(config.moe_router_bias_update_rate, 0);
  EXPECT_EQ(config.moe_router_topk_scaling_factor, 1.0);
  EXPECT_TRUE(config.moe_router_pre_softmax);
  EXPECT_EQ(config.moe_router_load_balancing_type, "seq_aux_loss");
  EXPECT_EQ(config.moe_router_dtype, "fp32");
  EXPECT_TRUE(config.moe_shared_expert_overlap);
  EXPECT_EQ(config.moe_router_num_groups, std::nullopt);
  EXPECT_EQ(config.moe_layer_freq[0], 0);
  EXPECT_EQ(config.moe_layer_freq[1], 1);
  EXPECT_EQ(model.builder.rotary_percent, 0.5);
}

// Covers ranks-23.
TEST(GoldenModels, GivesMiMoTheLayerForAnotherToken) {
  const auto config = convert(published("MiMo-7B")).transformer;

  EXPECT_EQ(config.mtp_num_layers, 1);
  EXPECT_EQ(config.mtp_loss_scaling_factor, 0.1);
}

// Covers ranks-23.
TEST(GoldenModels, GivesQwen25VlItsFixedTower) {
  ConvertOptions options;
  options.virtual_pipeline = 2;

  const auto model = convert(published("Qwen2.5-VL-7B"), options);

  EXPECT_THAT(model.transformer.mrope_section, ElementsAre(16, 24, 24));
  ASSERT_TRUE(model.vision.has_value());
  EXPECT_EQ(model.vision->num_layers, 64);  // times the chunks of the virtual pipeline
  EXPECT_EQ(model.vision->hidden_size, 1280);
  EXPECT_EQ(model.vision->ffn_hidden_size, 3420);
  EXPECT_EQ(model.vision->projector_ffn_hidden_size, 5120);
  EXPECT_EQ(model.vision->window_size, 112);
  EXPECT_THAT(model.vision->full_attention_blocks, ElementsAre(7, 15, 23, 31));
}

TEST(GoldenModels, CopiesTheTowerOfQwen3Vl) {
  const auto model = convert(published("Qwen3-VL-30B-A3B"));

  const auto& config = model.transformer;
  EXPECT_THAT(config.mrope_section, ElementsAre(24, 20, 20));
  EXPECT_FALSE(config.masked_softmax_fusion);
  EXPECT_TRUE(config.deallocate_pipeline_outputs);
  EXPECT_EQ(config.cp_comm_type, "p2p");
  EXPECT_EQ(config.moe_router_dtype, "fp32");
  EXPECT_TRUE(config.moe_permute_fusion);
  EXPECT_FALSE(config.moe_router_pre_softmax);
  ASSERT_TRUE(model.vision.has_value());
  EXPECT_EQ(model.vision->num_layers, 27);
  EXPECT_EQ(model.vision->num_position_embeddings, 2304);
  EXPECT_EQ(model.vision->out_hidden_size, 2048);
  EXPECT_THAT(model.vision->deepstack_visual_indexes, ElementsAre(8, 16, 24));
}

}  // namespace
}  // namespace troupe::core
