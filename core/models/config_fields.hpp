#pragma once

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "core/models/model_config.hpp"

namespace troupe::core {

/// Calls visit(name, field) for every field, for code that reads or writes them.
template <class Config, class Visit>
void visit_transformer_model(Config& c, const Visit& visit) {
  visit("num_layers", c.num_layers);
  visit("hidden_size", c.hidden_size);
  visit("num_attention_heads", c.num_attention_heads);
  visit("num_query_groups", c.num_query_groups);
  visit("ffn_hidden_size", c.ffn_hidden_size);
  visit("kv_channels", c.kv_channels);
  visit("attention_dropout", c.attention_dropout);
  visit("hidden_dropout", c.hidden_dropout);
  visit("layernorm_epsilon", c.layernorm_epsilon);
  visit("init_method_std", c.init_method_std);
  visit("add_bias_linear", c.add_bias_linear);
  visit("add_qkv_bias", c.add_qkv_bias);
  visit("qk_layernorm", c.qk_layernorm);
  visit("gated_linear_unit", c.gated_linear_unit);
  visit("activation_func", c.activation_func);
  visit("normalization", c.normalization);
  visit("rotary_interleaved", c.rotary_interleaved);
  visit("mrope_section", c.mrope_section);
  visit("window_size", c.window_size);
  visit("window_attn_skip_freq", c.window_attn_skip_freq);
}

template <class Config, class Visit>
void visit_parallel_fields(Config& c, const Visit& visit) {
  visit("tensor_model_parallel_size", c.tensor_model_parallel_size);
  visit("pipeline_model_parallel_size", c.pipeline_model_parallel_size);
  visit("virtual_pipeline_model_parallel_size", c.virtual_pipeline_model_parallel_size);
  visit("context_parallel_size", c.context_parallel_size);
  visit("expert_model_parallel_size", c.expert_model_parallel_size);
  visit("expert_tensor_parallel_size", c.expert_tensor_parallel_size);
  visit("num_layers_in_first_pipeline_stage", c.num_layers_in_first_pipeline_stage);
  visit("num_layers_in_last_pipeline_stage", c.num_layers_in_last_pipeline_stage);
  visit("microbatch_group_size_per_vp_stage", c.microbatch_group_size_per_vp_stage);
  visit("sequence_parallel", c.sequence_parallel);
  visit("overlap_p2p_comm", c.overlap_p2p_comm);
  visit("batch_p2p_comm", c.batch_p2p_comm);
  visit("deallocate_pipeline_outputs", c.deallocate_pipeline_outputs);
  visit("variable_seq_lengths", c.variable_seq_lengths);
  visit("cp_comm_type", c.cp_comm_type);
  visit("params_dtype", c.params_dtype);
  visit("pipeline_dtype", c.pipeline_dtype);
  visit("autocast_dtype", c.autocast_dtype);
  visit("bf16", c.bf16);
  visit("fp16", c.fp16);
  visit("use_cpu_initialization", c.use_cpu_initialization);
  visit("masked_softmax_fusion", c.masked_softmax_fusion);
  visit("persist_layer_norm", c.persist_layer_norm);
  visit("bias_activation_fusion", c.bias_activation_fusion);
  visit("bias_dropout_fusion", c.bias_dropout_fusion);
  visit("apply_rope_fusion", c.apply_rope_fusion);
  visit("disable_bf16_reduced_precision_matmul", c.disable_bf16_reduced_precision_matmul);
  visit("attention_backend", c.attention_backend);
}

template <class Config, class Visit>
void visit_expert_fields(Config& c, const Visit& visit) {
  visit("num_moe_experts", c.num_moe_experts);
  visit("moe_router_topk", c.moe_router_topk);
  visit("moe_ffn_hidden_size", c.moe_ffn_hidden_size);
  visit("moe_shared_expert_intermediate_size", c.moe_shared_expert_intermediate_size);
  visit("moe_shared_expert_overlap", c.moe_shared_expert_overlap);
  visit("moe_aux_loss_coeff", c.moe_aux_loss_coeff);
  visit("moe_router_load_balancing_type", c.moe_router_load_balancing_type);
  visit("moe_router_score_function", c.moe_router_score_function);
  visit("moe_router_pre_softmax", c.moe_router_pre_softmax);
  visit("moe_router_enable_expert_bias", c.moe_router_enable_expert_bias);
  visit("moe_router_bias_update_rate", c.moe_router_bias_update_rate);
  visit("moe_router_topk_scaling_factor", c.moe_router_topk_scaling_factor);
  visit("moe_router_dtype", c.moe_router_dtype);
  visit("moe_router_num_groups", c.moe_router_num_groups);
  visit("moe_router_group_topk", c.moe_router_group_topk);
  visit("moe_grouped_gemm", c.moe_grouped_gemm);
  visit("moe_permute_fusion", c.moe_permute_fusion);
  visit("moe_token_dispatcher_type", c.moe_token_dispatcher_type);
  visit("moe_layer_freq", c.moe_layer_freq);
}

template <class Config, class Visit>
void visit_latent_attention(Config& c, const Visit& visit) {
  visit("multi_latent_attention", c.multi_latent_attention);
  visit("q_lora_rank", c.q_lora_rank);
  visit("kv_lora_rank", c.kv_lora_rank);
  visit("qk_head_dim", c.qk_head_dim);
  visit("qk_pos_emb_head_dim", c.qk_pos_emb_head_dim);
  visit("v_head_dim", c.v_head_dim);
  visit("rope_type", c.rope_type);
  visit("rotary_base", c.rotary_base);
  visit("rotary_scaling_factor", c.rotary_scaling_factor);
  visit("original_max_position_embeddings", c.original_max_position_embeddings);
  visit("beta_fast", c.beta_fast);
  visit("beta_slow", c.beta_slow);
  visit("mscale", c.mscale);
  visit("mscale_all_dim", c.mscale_all_dim);
  visit("mtp_num_layers", c.mtp_num_layers);
  visit("mtp_loss_scaling_factor", c.mtp_loss_scaling_factor);
}

template <class Config, class Visit>
void visit_transformer(Config& c, const Visit& visit) {
  visit_transformer_model(c, visit);
  visit_parallel_fields(c, visit);
  visit_expert_fields(c, visit);
  visit_latent_attention(c, visit);
}

template <class Config, class Visit>
void visit_builder(Config& c, const Visit& visit) {
  visit("vocab_size", c.vocab_size);
  visit("max_sequence_length", c.max_sequence_length);
  visit("rotary_base", c.rotary_base);
  visit("rotary_percent", c.rotary_percent);
  visit("seq_len_interpolation_factor", c.seq_len_interpolation_factor);
  visit("rope_scaling", c.rope_scaling);
  visit("rope_scaling_factor", c.rope_scaling_factor);
  visit("position_embedding_type", c.position_embedding_type);
  visit("yarn_rotary_scaling_factor", c.yarn_rotary_scaling_factor);
  visit("yarn_original_max_position_embeddings", c.yarn_original_max_position_embeddings);
  visit("yarn_beta_fast", c.yarn_beta_fast);
  visit("yarn_beta_slow", c.yarn_beta_slow);
  visit("yarn_mscale", c.yarn_mscale);
  visit("yarn_mscale_all_dim", c.yarn_mscale_all_dim);
  visit("yarn_correction_range_round_to_int", c.yarn_correction_range_round_to_int);
  visit("share_embeddings_and_output_weights", c.share_embeddings_and_output_weights);
  visit("value_head", c.value_head);
  visit("shared_expert_gate", c.shared_expert_gate);
  visit("freeze_moe_router", c.freeze_moe_router);
}

template <class Config, class Visit>
void visit_vision(Config& c, const Visit& visit) {
  visit("num_layers", c.num_layers);
  visit("hidden_size", c.hidden_size);
  visit("num_attention_heads", c.num_attention_heads);
  visit("ffn_hidden_size", c.ffn_hidden_size);
  visit("in_channels", c.in_channels);
  visit("patch_size", c.patch_size);
  visit("temporal_patch_size", c.temporal_patch_size);
  visit("spatial_merge_size", c.spatial_merge_size);
  visit("out_hidden_size", c.out_hidden_size);
  visit("projector_ffn_hidden_size", c.projector_ffn_hidden_size);
  visit("window_size", c.window_size);
  visit("num_position_embeddings", c.num_position_embeddings);
  visit("full_attention_blocks", c.full_attention_blocks);
  visit("deepstack_visual_indexes", c.deepstack_visual_indexes);
}

/// Largest size, 2^40: products of three sizes do not overflow if they are multiplied with care.
inline constexpr std::int64_t kMaxConfigSize = std::int64_t{1} << 40;

/// Takes the value of a field out of JSON; returns whether it has the field's type.
bool take(const nlohmann::json& json, std::int64_t& field);
bool take(const nlohmann::json& json, double& field);
bool take(const nlohmann::json& json, bool& field);
bool take(const nlohmann::json& json, std::string& field);
bool take(const nlohmann::json& json, DType& field);
/// Null is an empty list.
bool take(const nlohmann::json& json, std::vector<std::int64_t>& field);
template <class T>
bool take(const nlohmann::json& json, std::optional<T>& field) {
  if (json.is_null()) {
    field.reset();
    return true;
  }
  T value{};
  if (!take(json, value)) return false;
  field = std::move(value);
  return true;
}

inline nlohmann::json put(std::int64_t field) {
  return field;
}
inline nlohmann::json put(double field) {
  return field;
}
inline nlohmann::json put(bool field) {
  return field;
}
inline nlohmann::json put(const std::string& field) {
  return field;
}
/// Written as PyTorch's name.
nlohmann::json put(DType field);
nlohmann::json put(const std::vector<std::int64_t>& field);
template <class T>
nlohmann::json put(const std::optional<T>& field) {
  return field ? put(*field) : nlohmann::json();
}

}  // namespace troupe::core
