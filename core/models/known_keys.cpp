#include "core/models/known_keys.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>

namespace troupe::core {

namespace {

using Json = nlohmann::json;

const std::set<std::string_view>& harmless_keys() {
  static const std::set<std::string_view> kKeys{
      // clang-format off
      // How the file was written, and by whom.
      "architectures", "auto_map", "name_or_path", "model_type", "transformers_version", "torch_dtype",
      "dtype", "tokenizer_class", "processor_class", "custom_pipelines", "transformers_weights",
      "transformers.js_config", "is_llama_config", "finetuning_task", "task_specific_params", "prefix",
      "language", "license", "sentence_transformers", "base_model", "base_model_name_or_path",
      "model_name", "attribute_map", "tokenizer_name", "tokenizer_name_or_path", "chat_template",
      "revision", "commit_hash", "trust_remote_code", "fp16", "bf16",
      // Token ids.
      "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id", "cls_token_id",
      "mask_token_id", "decoder_start_token_id", "image_token_id", "video_token_id",
      "vision_start_token_id", "vision_end_token_id", "vision_token_id", "image_token_index",
      "bos_token", "eos_token", "pad_token", "unk_token",
      // Heads of other tasks.
      "id2label", "label2id", "num_labels", "problem_type", "is_decoder", "is_encoder_decoder",
      // How to compute, and what to return.
      "use_cache", "attn_implementation", "experts_implementation", "output_attentions",
      "output_hidden_states", "output_router_logits", "return_dict", "return_dict_in_generate",
      "torchscript", "use_bfloat16", "tf_legacy_loss", "pretraining_tp", "ep_size",
      "chunk_size_feed_forward", "gradient_checkpointing", "gradient_checkpointing_kwargs",
      "use_flash_attn", "use_flash_attention", "use_flash_attention_2", "flash_attention", "use_sdpa",
      "tie_last_hidden_states", "model_parallel", "use_static_cache", "return_legacy_cache",
      "num_logits_to_keep", "logits_to_keep", "keys_to_ignore_at_inference", "keep_in_fp32_modules",
      "use_reentrant", "fused_kernels", "use_liger_kernel",
      // Lengths that only tokenizers and servers use.
      "max_sequence_length", "model_max_length", "max_seq_len", "max_seq_length", "max_model_len",
      "seq_length", "seq_len", "n_ctx", "n_positions", "pad_to_multiple_of",
      // Generation.
      "max_length", "max_new_tokens", "min_length", "do_sample", "early_stopping", "num_beams",
      "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "min_p", "typical_p",
      "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
      "bad_words_ids", "num_return_sequences", "output_scores", "forced_bos_token_id",
      "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty",
      "penalty_alpha", "forced_decoder_ids", "suppress_tokens", "begin_suppress_tokens",
      "cache_implementation", "generation_config",
      // clang-format on
  };
  return kKeys;
}

const std::set<std::string_view>& keys_of_parts() {
  static const std::set<std::string_view> kKeys{
      // clang-format off
      // Experts and routers.
      "num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok",
      "moe_intermediate_size", "shared_expert_intermediate_size", "n_shared_experts",
      "decoder_sparse_step", "mlp_only_layers", "moe_layer_freq", "first_k_dense_replace",
      "norm_topk_prob", "router_aux_loss_coef", "router_jitter_noise", "n_group", "topk_group",
      "topk_method", "scoring_func", "seq_aux", "aux_loss_alpha", "routed_scaling_factor",
      // Compressed keys and values.
      "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim",
      "v_head_dim",
      // Layers that predict more than one token, biases, vision.
      "num_nextn_predict_layers", "num_mtp_layers", "qkv_bias", "mlp_bias", "tokens_per_second",
      // clang-format on
  };
  return kKeys;
}

/// With the value of a model that does not have what the key is about.
const std::map<std::string_view, Json>& neutral_values() {
  static const std::map<std::string_view, Json> kValues{
      {"add_cross_attention", false},
      {"alibi", false},
      {"bias", false},
      {"causal", true},
      {"embedding_scale", 1},
      {"is_causal", true},
      {"layerdrop", 0},
      {"layer_drop", 0},
      {"logit_scale", 1},
      {"logits_scaling", 1},
      {"neftune_noise_alpha", 0},
      {"num_nextn_predict_layers", 0},
      {"parallel_attn", false},
      {"pruned_heads", Json::object()},
      {"qk_norm", false},
      {"rms_norm", true},
      {"rope_interleave", false},
      {"rope_interleaved", false},
      {"rotary_pct", 1},
      {"rotary_percent", 1},
      {"scale_emb", 1},
      {"scale_embedding", false},
      {"scale_embeddings", false},
      {"tie_encoder_decoder", false},
      {"use_alibi", false},
      {"use_logit_softcap", false},
      {"use_mrope", false},
      {"use_parallel_residual", false},
      {"use_qk_norm", false},
      {"use_rope", true},
  };
  return kValues;
}

bool is_number(const Json& value, double number) {
  return value.is_number() && value.get<double>() == number;
}

}  // namespace

bool is_harmless(std::string_view key) {
  // Attributes of transformers' objects for its own use, such as _flash_attn_2_enabled.
  if (key.starts_with('_') || key.starts_with("unsloth_") || key.ends_with("_version")) return true;
  return harmless_keys().contains(key);
}

bool is_of_other_models(std::string_view key) {
  return keys_of_parts().contains(key);
}

bool is_neutral(std::string_view key, const Json& value) {
  if (value.is_null() || ((value.is_structured() || value.is_string()) && value.empty())) return true;
  const auto found = neutral_values().find(key);
  if (found != neutral_values().end()) return value == found->second;
  const auto contains = [&](std::string_view part) { return key.find(part) != std::string_view::npos; };
  if (contains("dropout") || contains("pdrop")) return is_number(value, 0);
  if (contains("softcap")) return is_number(value, 0);
  // The factor of scores is not one of these: without it they are divided by a root.
  if (key.ends_with("_multiplier") && !contains("attention")) return is_number(value, 1);
  return key.ends_with("_bias") && value == false;
}

}  // namespace troupe::core
