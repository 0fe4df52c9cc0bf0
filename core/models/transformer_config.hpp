#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// A transformer's configuration with Megatron's names and defaults. Null means that Megatron derives the
/// value or does without it.
struct TransformerConfig {
  std::int64_t num_layers = 0;
  std::int64_t hidden_size = 0;
  std::int64_t num_attention_heads = 0;
  std::optional<std::int64_t> num_query_groups;  ///< same as the number of heads
  std::optional<std::int64_t> ffn_hidden_size;   ///< 4 * hidden_size
  std::optional<std::int64_t> kv_channels;       ///< hidden_size / num_attention_heads
  double attention_dropout = 0.1;
  double hidden_dropout = 0.1;
  double layernorm_epsilon = 1e-5;
  double init_method_std = 0.02;
  bool add_bias_linear = true;
  bool add_qkv_bias = false;
  bool qk_layernorm = false;
  bool gated_linear_unit = false;
  std::string activation_func = "gelu";
  std::string normalization = "LayerNorm";
  bool rotary_interleaved = false;
  std::vector<std::int64_t> mrope_section;  ///< empty: null
  /// How many positions before and after its own a token attends to: {4095, 0}. Empty: null, all before.
  std::vector<std::int64_t> window_size;
  std::vector<std::int64_t> window_attn_skip_freq;  ///< per layer: 1 a window, 0 none; empty: all alike

  std::int64_t tensor_model_parallel_size = 1;
  std::int64_t pipeline_model_parallel_size = 1;
  std::optional<std::int64_t> virtual_pipeline_model_parallel_size;
  std::int64_t context_parallel_size = 1;
  std::int64_t expert_model_parallel_size = 1;
  std::optional<std::int64_t> expert_tensor_parallel_size;  ///< same as tensor_model_parallel_size
  std::optional<std::int64_t> num_layers_in_first_pipeline_stage;
  std::optional<std::int64_t> num_layers_in_last_pipeline_stage;
  std::optional<std::int64_t> microbatch_group_size_per_vp_stage;
  bool sequence_parallel = false;
  bool overlap_p2p_comm = false;
  bool batch_p2p_comm = true;
  bool deallocate_pipeline_outputs = false;
  bool variable_seq_lengths = false;
  std::optional<std::string> cp_comm_type;

  DType params_dtype = DType::f32;
  std::optional<DType> pipeline_dtype;
  std::optional<DType> autocast_dtype;  ///< same as params_dtype
  bool bf16 = false;
  bool fp16 = false;
  bool use_cpu_initialization = false;
  bool masked_softmax_fusion = false;
  bool persist_layer_norm = false;
  bool bias_activation_fusion = false;
  bool bias_dropout_fusion = false;
  bool apply_rope_fusion = false;
  bool disable_bf16_reduced_precision_matmul = false;
  std::string attention_backend = "auto";  ///< flash, fused, unfused, local, auto

  std::optional<std::int64_t> num_moe_experts;
  std::int64_t moe_router_topk = 2;
  std::optional<std::int64_t> moe_ffn_hidden_size;
  std::optional<std::int64_t> moe_shared_expert_intermediate_size;
  bool moe_shared_expert_overlap = false;
  double moe_aux_loss_coeff = 0;
  std::string moe_router_load_balancing_type = "aux_loss";
  std::string moe_router_score_function = "softmax";
  bool moe_router_pre_softmax = false;
  bool moe_router_enable_expert_bias = false;
  double moe_router_bias_update_rate = 1e-3;
  std::optional<double> moe_router_topk_scaling_factor;
  std::optional<std::string> moe_router_dtype;
  std::optional<std::int64_t> moe_router_num_groups;
  std::optional<std::int64_t> moe_router_group_topk;
  bool moe_grouped_gemm = false;
  bool moe_permute_fusion = false;
  std::string moe_token_dispatcher_type = "allgather";
  std::vector<std::int64_t> moe_layer_freq;  ///< per layer: 1 experts, 0 dense; empty: all as the model has

  bool multi_latent_attention = false;
  std::optional<std::int64_t> q_lora_rank;  ///< null: queries are not compressed
  std::int64_t kv_lora_rank = 512;
  std::int64_t qk_head_dim = 128;
  std::int64_t qk_pos_emb_head_dim = 64;
  std::int64_t v_head_dim = 128;
  std::string rope_type = "yarn";  ///< rope, yarn
  double rotary_base = 10000;
  double rotary_scaling_factor = 40;
  std::int64_t original_max_position_embeddings = 4096;
  double beta_fast = 32;
  double beta_slow = 1;
  double mscale = 1;
  double mscale_all_dim = 0;

  std::optional<std::int64_t> mtp_num_layers;
  std::optional<double> mtp_loss_scaling_factor;

  friend bool operator==(const TransformerConfig&, const TransformerConfig&) = default;

  bool layer_has_experts(std::int64_t layer) const {
    if (!num_moe_experts) return false;
    return moe_layer_freq.empty() || moe_layer_freq[static_cast<std::size_t>(layer)] != 0;
  }
};

/// Sets what Megatron derives from other fields and checks the configuration against Megatron's rules.
/// Errc::invalid_argument names the fields that contradict each other. Returns warnings.
Result<std::vector<std::string>> complete(TransformerConfig& config);

/// Changes one field, whose value is JSON: null, a number, a string, ... Errc::not_found when there is no
/// such field, Errc::invalid_argument for a value that it does not accept.
Result<void> set_field(TransformerConfig& config, std::string_view name, std::string_view json);

}  // namespace troupe::core
