#include <algorithm>
#include <set>

#include "core/errors.hpp"
#include "core/models/config_reader.hpp"
#include "core/models/model_config.hpp"

namespace troupe::core {

namespace {

using Json = nlohmann::json;
using Config = TransformerConfig;

bool is_qwen(Architecture architecture) {
  return facts_of(architecture).model_type.starts_with("qwen");
}

bool always_says_head_dim(Architecture architecture) {
  return facts_of(architecture).model_type.starts_with("qwen3") || architecture == Architecture::glm4_moe;
}

void put_base(const ModelConfig& model, Json& json) {
  const Config& config = model.transformer;
  json["num_hidden_layers"] = config.num_layers;
  json["hidden_size"] = config.hidden_size;
  json["num_attention_heads"] = config.num_attention_heads;
  json["num_key_value_heads"] = put(config.num_query_groups);
  json["intermediate_size"] = put(config.ffn_hidden_size);
  json["attention_dropout"] = config.attention_dropout;
  if (config.hidden_dropout != 0) json["hidden_dropout"] = config.hidden_dropout;
  const auto derived = config.hidden_size / std::max<std::int64_t>(1, config.num_attention_heads);
  if (config.kv_channels && (config.kv_channels != derived || always_says_head_dim(model.architecture)))
    json["head_dim"] = *config.kv_channels;
  json["rms_norm_eps"] = config.layernorm_epsilon;
  json["initializer_range"] = config.init_method_std;
  json["hidden_act"] = "silu";
  json["vocab_size"] = model.builder.vocab_size;
  json["max_position_embeddings"] = model.builder.max_sequence_length;
}

void put_windows(const ModelConfig& model, Json& json) {
  const Config& config = model.transformer;
  const bool has_window = !config.window_size.empty();
  if (is_qwen(model.architecture)) json["use_sliding_window"] = has_window;
  // Without the key, a Mistral gets windows.
  if (model.architecture == Architecture::mistral) json["sliding_window"] = nullptr;
  if (!has_window) return;
  json["sliding_window"] = config.window_size.front() + 1;
  if (!is_qwen(model.architecture) || model.architecture == Architecture::qwen3_moe) return;
  Json types = Json::array();
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    const auto& windows = config.window_attn_skip_freq;
    const bool is_full = !windows.empty() && windows[static_cast<std::size_t>(layer)] == 0;
    types.push_back(is_full ? "full_attention" : "sliding_attention");
  }
  json["layer_types"] = std::move(types);
}

void put_rotary(const ModelConfig& model, Json& json) {
  const auto& builder = model.builder;
  const Config& config = model.transformer;
  json["rope_theta"] = builder.rotary_base;
  Json scaling = Json::object();
  if (builder.seq_len_interpolation_factor) {
    scaling = {{"type", "linear"}, {"factor", *builder.seq_len_interpolation_factor}};
  } else if (builder.rope_scaling) {
    scaling = {{"type", "llama3"},
               {"factor", builder.rope_scaling_factor},
               {"low_freq_factor", 1.0},
               {"high_freq_factor", 4.0},
               {"original_max_position_embeddings", 8192}};
  } else if (builder.yarn_rotary_scaling_factor) {
    scaling = {{"type", "yarn"},
               {"factor", *builder.yarn_rotary_scaling_factor},
               {"original_max_position_embeddings", put(builder.yarn_original_max_position_embeddings)},
               {"beta_fast", put(builder.yarn_beta_fast)},
               {"beta_slow", put(builder.yarn_beta_slow)},
               {"truncate", builder.yarn_correction_range_round_to_int.value_or(true)}};
    if (builder.yarn_mscale) scaling["mscale"] = *builder.yarn_mscale;
    if (builder.yarn_mscale_all_dim) scaling["mscale_all_dim"] = *builder.yarn_mscale_all_dim;
  } else if (config.multi_latent_attention && config.rope_type == "yarn") {
    scaling = {{"type", "yarn"},
               {"factor", config.rotary_scaling_factor},
               {"original_max_position_embeddings", config.original_max_position_embeddings},
               {"beta_fast", config.beta_fast},
               {"beta_slow", config.beta_slow},
               {"mscale", config.mscale},
               {"mscale_all_dim", config.mscale_all_dim}};
  }
  if (!config.mrope_section.empty()) {
    if (scaling.empty()) scaling["type"] = "default";
    scaling["mrope_section"] = config.mrope_section;
  }
  // Readers know either name.
  if (scaling.contains("type")) scaling["rope_type"] = scaling["type"];
  json["rope_scaling"] = scaling.empty() ? Json() : std::move(scaling);
}

void put_softmax_router(const Config& config, const char* experts, Json& json) {
  json[experts] = put(config.num_moe_experts);
  json["num_experts_per_tok"] = config.moe_router_topk;
  json["router_aux_loss_coef"] = config.moe_aux_loss_coeff;
  if (std::string_view(experts) == "num_local_experts") return;
  json["norm_topk_prob"] = !config.moe_router_pre_softmax;
  json["moe_intermediate_size"] = put(config.moe_ffn_hidden_size);
  json["decoder_sparse_step"] = 1;
  Json dense = Json::array();
  for (std::size_t i = 0; i < config.moe_layer_freq.size(); ++i) {
    if (config.moe_layer_freq[i] == 0) dense.push_back(i);
  }
  json["mlp_only_layers"] = std::move(dense);
}

void put_sigmoid_router(const Config& config, Json& json) {
  json["n_routed_experts"] = put(config.num_moe_experts);
  json["num_experts_per_tok"] = config.moe_router_topk;
  json["moe_intermediate_size"] = put(config.moe_ffn_hidden_size);
  json["routed_scaling_factor"] = put(config.moe_router_topk_scaling_factor);
  json["norm_topk_prob"] = config.moe_router_topk > 1;
  json["n_group"] = config.moe_router_num_groups.value_or(1);
  json["topk_group"] = config.moe_router_group_topk.value_or(1);
  const auto& freq = config.moe_layer_freq;
  json["first_k_dense_replace"] = std::find(freq.begin(), freq.end(), 1) - freq.begin();
  const auto width = config.moe_ffn_hidden_size.value_or(0);
  json["n_shared_experts"] = width > 0 ? config.moe_shared_expert_intermediate_size.value_or(0) / width : 0;
}

void put_latent_attention(const Config& config, Json& json) {
  json["q_lora_rank"] = put(config.q_lora_rank);
  json["kv_lora_rank"] = config.kv_lora_rank;
  json["qk_nope_head_dim"] = config.qk_head_dim;
  json["qk_rope_head_dim"] = config.qk_pos_emb_head_dim;
  json["v_head_dim"] = config.v_head_dim;
}

void put_architecture(const ModelConfig& model, Json& json) {
  const Config& config = model.transformer;
  switch (model.architecture) {
    case Architecture::llama:
    case Architecture::llama_token_classification:
    case Architecture::qwen3:
    case Architecture::qwen3_token_classification:
      json["attention_bias"] = config.add_qkv_bias;
      break;
    case Architecture::mimo:
      if (config.mtp_num_layers) json["num_nextn_predict_layers"] = *config.mtp_num_layers;
      break;
    case Architecture::qwen2_moe:
      json["shared_expert_intermediate_size"] = put(config.moe_shared_expert_intermediate_size);
      put_softmax_router(config, "num_experts", json);
      break;
    case Architecture::qwen3_moe:
    case Architecture::qwen3_vl_moe:
      put_softmax_router(config, "num_experts", json);
      break;
    case Architecture::mixtral:
      put_softmax_router(config, "num_local_experts", json);
      break;
    case Architecture::deepseek_v3:
      put_sigmoid_router(config, json);
      put_latent_attention(config, json);
      json["aux_loss_alpha"] = config.moe_aux_loss_coeff;
      json["scoring_func"] = "sigmoid";
      json["topk_method"] = "noaux_tc";
      json["num_nextn_predict_layers"] = 0;
      break;
    case Architecture::glm4_moe:
      put_sigmoid_router(config, json);
      json["attention_bias"] = config.add_qkv_bias;
      json["use_qk_norm"] = config.qk_layernorm;
      json["partial_rotary_factor"] = model.builder.rotary_percent;
      if (config.mtp_num_layers) json["num_nextn_predict_layers"] = *config.mtp_num_layers;
      break;
    default:
      break;
  }
}

Json vision_json(const ModelConfig& model) {
  const auto& vision = *model.vision;
  Json json = {{"hidden_size", vision.hidden_size},
               {"num_heads", vision.num_attention_heads},
               {"intermediate_size", vision.ffn_hidden_size},
               {"in_channels", vision.in_channels},
               {"patch_size", vision.patch_size},
               {"temporal_patch_size", vision.temporal_patch_size},
               {"spatial_merge_size", vision.spatial_merge_size},
               {"out_hidden_size", vision.out_hidden_size}};
  if (model.architecture == Architecture::qwen2_5_vl) {
    json["depth"] = 32;
    json["hidden_act"] = "silu";
    json["window_size"] = vision.window_size;
    json["fullatt_block_indexes"] = vision.full_attention_blocks;
  } else {
    json["depth"] = vision.num_layers;
    json["hidden_act"] = "gelu_pytorch_tanh";
    json["num_position_embeddings"] = vision.num_position_embeddings;
    json["deepstack_visual_indexes"] = vision.deepstack_visual_indexes;
  }
  return json;
}

/// Puts a value at the place that a dotted name leads to.
void put_kept(Json& json, std::string_view name, const std::string& text) {
  Json* at = &json;
  for (std::string_view prefix : {"text_config.", "vision_config."}) {
    if (!name.starts_with(prefix) || !json.contains(prefix.substr(0, prefix.size() - 1))) continue;
    at = &json[std::string(prefix.substr(0, prefix.size() - 1))];
    name.remove_prefix(prefix.size());
    break;
  }
  auto value = Json::parse(text, nullptr, false);
  if (!value.is_discarded() && !at->contains(name)) (*at)[std::string(name)] = std::move(value);
}

/// Fields that say how to compute, not what.
bool is_free(std::string_view field) {
  static const std::set<std::string_view> kFree{"moe_shared_expert_overlap",
                                                "moe_router_load_balancing_type",
                                                "moe_router_bias_update_rate",
                                                "moe_router_dtype",
                                                "moe_grouped_gemm",
                                                "moe_permute_fusion",
                                                "moe_token_dispatcher_type",
                                                "mtp_loss_scaling_factor",
                                                "freeze_moe_router"};
  return kFree.contains(field);
}

template <class Config, class Visitor>
std::string first_difference(const Config& wanted, const Config& found, const Visitor& visit_all) {
  std::map<std::string, Json> values;
  visit_all(wanted, [&](const char* name, const auto& field) { values[name] = put(field); });
  std::string different;
  visit_all(found, [&](const char* name, const auto& field) {
    if (different.empty() && !is_free(name) && values[name] != put(field))
      different = fmt::format("{} is {}, which config.json of this architecture cannot say: it gives {}",
                              name, values[name].dump(), put(field).dump());
  });
  return different;
}

/// Whether the file expresses everything, checked by reading it back.
Result<void> check_said(const ModelConfig& model, const std::string& text) {
  ConvertOptions options;
  options.dtype = model.transformer.params_dtype;
  options.virtual_pipeline =
      static_cast<int>(model.transformer.virtual_pipeline_model_parallel_size.value_or(0));
  auto again = from_huggingface(text, options);
  if (!again) return tl::unexpected(std::move(again).error());
  auto different = first_difference(model.transformer, again->config.transformer,
                                    [](const auto& config, const auto& visit) {
                                      visit_transformer_model(config, visit);
                                      visit_expert_fields(config, visit);
                                      visit_latent_attention(config, visit);
                                    });
  if (different.empty())
    different = first_difference(model.builder, again->config.builder,
                                 [](const auto& config, const auto& visit) { visit_builder(config, visit); });
  if (different.empty() && model.vision)
    different = first_difference(*model.vision, *again->config.vision,
                                 [](const auto& config, const auto& visit) { visit_vision(config, visit); });
  if (!different.empty()) return fail(Errc::invalid_argument, "{}", different);
  return {};
}

}  // namespace

Result<std::string> to_huggingface(const ModelConfig& model) {
  const auto& facts = facts_of(model.architecture);
  if (has_vision(model.architecture) != model.vision.has_value())
    return fail(Errc::invalid_argument, "{} {} a vision tower", facts.name,
                model.vision ? "has no" : "needs");
  Json text = Json::object();
  put_base(model, text);
  put_windows(model, text);
  put_rotary(model, text);
  put_architecture(model, text);
  Json json = Json::object();
  if (model.vision) {
    json["text_config"] = std::move(text);
    json["vision_config"] = vision_json(model);
  } else {
    json = std::move(text);
  }
  json["architectures"] = {std::string(facts.name)};
  json["model_type"] = std::string(facts.model_type);
  json["tie_word_embeddings"] = model.builder.share_embeddings_and_output_weights;
  for (const auto& [name, value] : model.kept) put_kept(json, name, value);
  auto written = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  TRY(check_said(model, written));
  return written;
}

}  // namespace troupe::core
