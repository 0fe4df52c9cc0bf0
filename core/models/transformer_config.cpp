#include "core/models/transformer_config.hpp"

#include <algorithm>
#include <array>
#include <set>

#include "core/errors.hpp"
#include "core/models/config_fields.hpp"

namespace troupe::core {

namespace {

using Config = TransformerConfig;
using Json = nlohmann::json;

template <class... Args>
Result<void> refuse(fmt::format_string<Args...> format, Args&&... args) {
  return fail(Errc::invalid_argument, format, std::forward<Args>(args)...);
}

Result<void> check_sizes(const Config& config) {
  constexpr std::array kSizes{
      std::pair{"num_layers", &Config::num_layers},
      std::pair{"hidden_size", &Config::hidden_size},
      std::pair{"num_attention_heads", &Config::num_attention_heads},
      std::pair{"tensor_model_parallel_size", &Config::tensor_model_parallel_size},
      std::pair{"pipeline_model_parallel_size", &Config::pipeline_model_parallel_size},
      std::pair{"context_parallel_size", &Config::context_parallel_size},
      std::pair{"expert_model_parallel_size", &Config::expert_model_parallel_size},
      std::pair{"moe_router_topk", &Config::moe_router_topk},
  };
  for (const auto& [name, size] : kSizes) {
    if (config.*size < 1) return refuse("{} is {}; it must be at least 1", name, config.*size);
  }
  constexpr std::array kMaybe{
      std::pair{"num_query_groups", &Config::num_query_groups},
      std::pair{"ffn_hidden_size", &Config::ffn_hidden_size},
      std::pair{"kv_channels", &Config::kv_channels},
      std::pair{"virtual_pipeline_model_parallel_size", &Config::virtual_pipeline_model_parallel_size},
      std::pair{"expert_tensor_parallel_size", &Config::expert_tensor_parallel_size},
      std::pair{"num_moe_experts", &Config::num_moe_experts},
      std::pair{"moe_ffn_hidden_size", &Config::moe_ffn_hidden_size},
      std::pair{"moe_shared_expert_intermediate_size", &Config::moe_shared_expert_intermediate_size},
      std::pair{"num_layers_in_first_pipeline_stage", &Config::num_layers_in_first_pipeline_stage},
      std::pair{"num_layers_in_last_pipeline_stage", &Config::num_layers_in_last_pipeline_stage},
  };
  for (const auto& [name, size] : kMaybe) {
    if (config.*size && *(config.*size) < 1)
      return refuse("{} is {}; it must be at least 1, or null", name, *(config.*size));
  }
  return {};
}

void derive(Config& config, std::vector<std::string>& warnings) {
  if (!config.ffn_hidden_size) config.ffn_hidden_size = 4 * config.hidden_size;
  if (!config.kv_channels) config.kv_channels = config.hidden_size / config.num_attention_heads;
  if (!config.num_query_groups) config.num_query_groups = config.num_attention_heads;
  if (!config.expert_tensor_parallel_size)
    config.expert_tensor_parallel_size = config.tensor_model_parallel_size;
  if (!config.autocast_dtype) config.autocast_dtype = config.params_dtype;
  if (!config.microbatch_group_size_per_vp_stage)
    config.microbatch_group_size_per_vp_stage = config.pipeline_model_parallel_size;
  if (config.num_moe_experts && !config.moe_ffn_hidden_size) {
    config.moe_ffn_hidden_size = config.ffn_hidden_size;
    warnings.emplace_back("moe_ffn_hidden_size is not set; experts get ffn_hidden_size");
  }
}

Result<void> check_parallel(const Config& config) {
  const auto tp = config.tensor_model_parallel_size;
  const auto groups = *config.num_query_groups;
  if (config.num_attention_heads % tp != 0)
    return refuse("num_attention_heads {} is not a multiple of tensor_model_parallel_size {}",
                  config.num_attention_heads, tp);
  if (groups % tp != 0 && tp % groups != 0)
    return refuse("num_query_groups {} is neither a multiple nor a divisor of tensor_model_parallel_size {}",
                  groups, tp);
  if (config.num_attention_heads % groups != 0)
    return refuse("num_attention_heads {} is not a multiple of num_query_groups {}",
                  config.num_attention_heads, groups);
  if (*config.kv_channels < 1)
    return refuse("kv_channels is 0: hidden_size {} is less than num_attention_heads {}", config.hidden_size,
                  config.num_attention_heads);
  if (config.sequence_parallel && tp == 1)
    return refuse("sequence_parallel needs tensor_model_parallel_size above 1");
  if (config.pipeline_model_parallel_size > 1 && !config.pipeline_dtype)
    return refuse("pipeline_model_parallel_size {} needs pipeline_dtype",
                  config.pipeline_model_parallel_size);
  if (config.fp16 && config.bf16) return refuse("fp16 and bf16 exclude each other");
  if (config.expert_model_parallel_size > 1 && !config.num_moe_experts)
    return refuse("expert_model_parallel_size {} needs num_moe_experts", config.expert_model_parallel_size);
  return {};
}

Result<void> check_windows(const Config& config) {
  if (!config.window_size.empty() && config.window_size.size() != 2)
    return refuse("window_size has {} numbers; expected two, before and after", config.window_size.size());
  const auto& layers = config.window_attn_skip_freq;
  if (!layers.empty() && layers.size() != static_cast<std::size_t>(config.num_layers))
    return refuse("window_attn_skip_freq has {} entries for {} layers", layers.size(), config.num_layers);
  return {};
}

Result<void> check_pipeline(const Config& config) {
  const auto first = config.num_layers_in_first_pipeline_stage;
  const auto last = config.num_layers_in_last_pipeline_stage;
  if (!first && !last) return {};
  auto stages = config.pipeline_model_parallel_size;
  auto layers = config.num_layers;
  for (const auto& end : {first, last}) {
    if (!end) continue;
    stages -= 1;
    layers -= *end;
  }
  const bool fits = stages == 0 ? layers == 0 : stages > 0 && layers >= 0 && layers % stages == 0;
  if (!fits)
    return refuse(
        "num_layers {} with {} in the first and {} in the last stage leaves {} layers for {} stages",
        config.num_layers, first.value_or(0), last.value_or(0), layers, stages);
  return {};
}

Result<void> check_experts(const Config& config) {
  if (!config.num_moe_experts) {
    if (config.moe_ffn_hidden_size) return refuse("moe_ffn_hidden_size is set without num_moe_experts");
    return {};
  }
  const auto& freq = config.moe_layer_freq;
  if (!freq.empty() && freq.size() != static_cast<std::size_t>(config.num_layers))
    return refuse("moe_layer_freq has {} entries for {} layers", freq.size(), config.num_layers);
  if (config.moe_router_topk > *config.num_moe_experts)
    return refuse("moe_router_topk {} is more than num_moe_experts {}", config.moe_router_topk,
                  *config.num_moe_experts);
  const auto& dispatcher = config.moe_token_dispatcher_type;
  if (config.moe_shared_expert_overlap && config.moe_shared_expert_intermediate_size &&
      dispatcher != "alltoall" && dispatcher != "flex")
    return refuse("moe_shared_expert_overlap needs moe_token_dispatcher_type alltoall or flex, not {}",
                  dispatcher);
  const auto& score = config.moe_router_score_function;
  if (config.moe_router_enable_expert_bias && score != "sigmoid" && score != "sqrtsoftplus")
    return refuse(
        "moe_router_enable_expert_bias needs moe_router_score_function sigmoid or sqrtsoftplus, "
        "not {}",
        score);
  if (config.moe_router_topk == 1 && score == "softmax" && !config.moe_router_pre_softmax &&
      config.moe_router_load_balancing_type != "sinkhorn")
    return refuse("moe_router_topk 1 with softmax needs moe_router_pre_softmax");
  if (config.add_bias_linear && *config.expert_tensor_parallel_size > 1)
    return refuse("add_bias_linear with experts needs expert_tensor_parallel_size 1, not {}",
                  *config.expert_tensor_parallel_size);
  if (dispatcher == "allgather" && config.variable_seq_lengths)
    return refuse("moe_token_dispatcher_type allgather takes no variable_seq_lengths");
  return {};
}

Result<void> check_layers(const Config& config) {
  static const std::set<std::string> kFused{"gelu", "silu", "quick_gelu"};
  if (config.bias_activation_fusion && !kFused.contains(config.activation_func))
    return refuse("bias_activation_fusion needs activation_func gelu, silu or quick_gelu, not {}",
                  config.activation_func);
  static const std::set<std::string> kBackends{"flash", "fused", "unfused", "local", "auto"};
  if (!kBackends.contains(config.attention_backend))
    return refuse("attention_backend '{}' is not one of flash, fused, unfused, local, auto",
                  config.attention_backend);
  if (!config.multi_latent_attention) return {};
  if (config.rope_type != "rope" && config.rope_type != "yarn")
    return refuse("rope_type '{}' is neither rope nor yarn", config.rope_type);
  if (config.apply_rope_fusion && config.rope_type != "yarn")
    return refuse("apply_rope_fusion with multi_latent_attention needs rope_type yarn, not {}",
                  config.rope_type);
  if (config.rotary_interleaved) return refuse("multi_latent_attention takes no rotary_interleaved");
  return {};
}

}  // namespace

Result<std::vector<std::string>> complete(TransformerConfig& config) {
  std::vector<std::string> warnings;
  TRY(check_sizes(config));
  derive(config, warnings);
  TRY(check_parallel(config));
  TRY(check_windows(config));
  TRY(check_pipeline(config));
  TRY(check_experts(config));
  TRY(check_layers(config));
  if (config.num_moe_experts.value_or(0) >= 32 && !config.moe_router_dtype)
    warnings.push_back(
        fmt::format("{} experts without moe_router_dtype: route in fp32 or fp64", *config.num_moe_experts));
  if (config.expert_model_parallel_size > 1 && config.tensor_model_parallel_size > 1 &&
      !config.sequence_parallel)
    warnings.emplace_back("expert and tensor parallel without sequence_parallel is slow");
  return warnings;
}

Result<void> set_field(TransformerConfig& config, std::string_view name, std::string_view json) {
  const auto value = Json::parse(json, nullptr, false);
  bool found = false;
  bool taken = false;
  visit_transformer(config, [&](const char* field_name, auto& field) {
    if (name != field_name) return;
    found = true;
    // A word without quotes is accepted as text: it comes from a command line.
    taken = take(value, field) || (value.is_discarded() && take(Json(std::string(json)), field));
  });
  if (!found) return fail(Errc::not_found, "a transformer's configuration has no field '{}'", name);
  if (!taken) return refuse("{} does not take {}", name, json.substr(0, 80));
  return {};
}

}  // namespace troupe::core
