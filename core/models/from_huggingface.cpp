#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>

#include "core/errors.hpp"
#include "core/models/block_scales.hpp"
#include "core/models/config_architecture.hpp"
#include "core/models/config_reader.hpp"
#include "core/models/huggingface_rules.hpp"
#include "core/models/model_config.hpp"

namespace troupe::core {

namespace {

using Json = nlohmann::json;
using Maybe = std::optional<std::int64_t>;

/// The inputs and outputs of a conversion.
struct Conversion {
  ConfigReader& keys;
  const ConvertOptions& options;
  ModelConfig& model;
  std::vector<std::string>& warnings;
  std::int64_t next_token_layers = 0;  ///< of a DeepSeek

  const ArchitectureFacts& facts() const { return facts_of(model.architecture); }
  TransformerConfig& config() const { return model.transformer; }
};

void convert_parallel(const Conversion& c) {
  auto& config = c.config();
  const auto& mesh = c.options.mesh;
  config.tensor_model_parallel_size = mesh.tp;
  config.pipeline_model_parallel_size = mesh.pp;
  config.context_parallel_size = mesh.cp;
  config.expert_model_parallel_size = mesh.ep;
  if (mesh.etp != 0) config.expert_tensor_parallel_size = mesh.etp;
  const int vpp = c.options.virtual_pipeline;
  if (vpp > 0) config.virtual_pipeline_model_parallel_size = vpp;
  config.sequence_parallel = mesh.tp > 1;
  config.overlap_p2p_comm = vpp > 1;
  config.batch_p2p_comm = false;
  config.variable_seq_lengths = true;
  config.params_dtype = c.options.dtype;
  config.pipeline_dtype = c.options.dtype;
  config.bf16 = c.options.dtype == DType::bf16;
}

/// A missing key has the value that transformers' class takes; null stands for the width or number of heads.
std::int64_t key_value_heads(const Conversion& c) {
  const auto groups = c.keys.maybe<std::int64_t>("num_key_value_heads");
  if (groups) return *groups;
  const auto heads = c.config().num_attention_heads;
  const auto missing = c.keys.is_said("num_key_value_heads") ? 0 : c.facts().key_value_heads;
  return missing != 0 ? missing : heads;
}

/// Root and text_config may differ: the outer one counts, but Qwen2.5-VL ties if either says so.
bool ties_embeddings(const Conversion& c) {
  auto values = c.keys.find_all("tie_word_embeddings");
  if (values.size() > 1 && c.model.architecture != Architecture::qwen2_5_vl) values.pop_back();
  bool ties = false;
  for (const auto* value : values) {
    bool says = false;
    if (!take(*value, says)) c.keys.complain("key 'tie_word_embeddings' is neither true nor false");
    ties = ties || says;
  }
  return ties;
}

/// What all architectures share.
void convert_base(const Conversion& c) {
  auto& config = c.config();
  auto& keys = c.keys;
  config.num_layers = keys.size("num_hidden_layers");
  config.hidden_size = keys.size("hidden_size");
  config.num_attention_heads = keys.size("num_attention_heads");
  config.num_query_groups = key_value_heads(c);
  config.ffn_hidden_size = keys.size("intermediate_size");
  config.attention_dropout = keys.value_or("attention_dropout", 0.0);
  config.hidden_dropout = keys.value_or("hidden_dropout", 0.0);
  config.kv_channels = keys.maybe<std::int64_t>("head_dim");
  if (!config.kv_channels && c.facts().head_width != 0) config.kv_channels = c.facts().head_width;
  config.layernorm_epsilon = keys.value_or("rms_norm_eps", c.facts().norm_epsilon);
  config.init_method_std = keys.value_or("initializer_range", 0.02);
  config.add_bias_linear = false;
  config.activation_func = "silu";
  config.gated_linear_unit = true;
  config.normalization = "RMSNorm";
  config.masked_softmax_fusion = true;
  config.moe_token_dispatcher_type = "alltoall";
  auto& builder = c.model.builder;
  builder.vocab_size = keys.size("vocab_size");
  builder.max_sequence_length = keys.value_or("max_position_embeddings", c.facts().positions);
  builder.share_embeddings_and_output_weights = ties_embeddings(c);
  builder.value_head = is_value_model(c.model.architecture);
}

void fuse(TransformerConfig& config) {
  config.persist_layer_norm = true;
  config.bias_activation_fusion = true;
  config.bias_dropout_fusion = true;
}

void convert_dense(const Conversion& c) {
  auto& config = c.config();
  switch (c.model.architecture) {
    case Architecture::qwen2:
    case Architecture::mimo:
      config.add_qkv_bias = true;  // whatever attention_bias says, which these classes do not read
      break;
    case Architecture::mistral:
      break;
    default:
      config.add_qkv_bias = c.keys.value_or("attention_bias", false);
  }
  config.qk_layernorm = c.model.architecture == Architecture::qwen3 ||
                        c.model.architecture == Architecture::qwen3_token_classification;
  if (c.model.architecture != Architecture::mimo) return;
  config.mtp_num_layers = c.keys.maybe<std::int64_t>("num_nextn_predict_layers");
  config.mtp_loss_scaling_factor = 0.1;
}

/// A number that transformers' class knows by several names, the one that it writes first.
Maybe named(ConfigReader& keys, std::initializer_list<const char*> names) {
  Maybe agreed;
  const char* where = nullptr;
  for (const char* name : names) {
    const auto value = keys.maybe<std::int64_t>(name);
    if (!value) continue;
    if (agreed && *agreed != *value)
      keys.complain(
          fmt::format("keys '{}' and '{}' are names of one number, found {} and {}; remove the wrong one",
                      where, name, *agreed, *value));
    agreed = value;
    where = name;
  }
  return agreed;
}

std::int64_t size_named(ConfigReader& keys, std::initializer_list<const char*> names) {
  const auto value = named(keys, names);
  return value ? *value : keys.size(*names.begin());
}

/// What softmax routers have in common. `normalised`: the chosen weights sum to one, as in transformers
/// unless the file says otherwise.
void convert_softmax_router(const Conversion& c, std::initializer_list<const char*> experts,
                            bool normalised) {
  auto& config = c.config();
  config.num_moe_experts = size_named(c.keys, experts);
  config.moe_router_topk = c.keys.size("num_experts_per_tok");
  config.moe_aux_loss_coeff = c.keys.value_or("router_aux_loss_coef", 0.001);
  config.moe_router_load_balancing_type = "none";
  config.moe_router_score_function = "softmax";
  config.moe_router_pre_softmax = !normalised;
  config.moe_router_bias_update_rate = 0.001;
  config.moe_grouped_gemm = true;
  fuse(config);
}

/// Models with both dense and expert layers.
void convert_sparse_layers(const Conversion& c) {
  const auto step = c.keys.value_or("decoder_sparse_step", std::int64_t{1});
  const auto dense = c.keys.value_or("mlp_only_layers", std::vector<std::int64_t>{});
  const auto layers = c.config().num_layers;
  if (layers > kMaxLayers) return;
  std::vector<std::int64_t> freq;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const bool listed = std::find(dense.begin(), dense.end(), layer) != dense.end();
    freq.push_back(step > 0 && (layer + 1) % step == 0 && !listed ? 1 : 0);
  }
  if (std::find(freq.begin(), freq.end(), 0) != freq.end()) c.config().moe_layer_freq = std::move(freq);
}

void convert_qwen2_moe(const Conversion& c) {
  auto& config = c.config();
  config.add_qkv_bias = true;
  c.keys.must_be("qkv_bias", true);
  convert_softmax_router(c, {"num_experts"}, c.keys.value_or("norm_topk_prob", false));
  config.moe_ffn_hidden_size = c.keys.size("moe_intermediate_size");
  config.moe_shared_expert_intermediate_size = c.keys.size("shared_expert_intermediate_size");
  config.moe_shared_expert_overlap = true;
  convert_sparse_layers(c);
  c.model.builder.shared_expert_gate = true;
  c.model.builder.freeze_moe_router = true;
}

void convert_qwen3_moe(const Conversion& c) {
  auto& config = c.config();
  config.qk_layernorm = true;
  c.keys.must_be("attention_bias", false);
  convert_softmax_router(c, {"num_experts", "num_local_experts"}, c.keys.value_or("norm_topk_prob", false));
  config.moe_ffn_hidden_size = c.keys.size("moe_intermediate_size");
  convert_sparse_layers(c);
  c.model.builder.freeze_moe_router = true;
}

void convert_mixtral(const Conversion& c) {
  auto& config = c.config();
  // Transformers divides the chosen weights by their sum, which is equivalent to softmax after the choice.
  convert_softmax_router(c, {"num_local_experts", "num_experts"}, true);
  config.moe_ffn_hidden_size = config.ffn_hidden_size;
  config.moe_shared_expert_overlap = false;
  config.apply_rope_fusion = true;
  c.keys.must_be("router_jitter_noise", 0.0);
}

/// Only experts of the best groups are chosen.
void convert_expert_groups(const Conversion& c) {
  auto& config = c.config();
  auto groups = c.keys.maybe<std::int64_t>("n_group");
  auto chosen = c.keys.maybe<std::int64_t>("topk_group");
  // What transformers' classes take.
  const bool is_deepseek = c.model.architecture == Architecture::deepseek_v3;
  if (!c.keys.is_said("n_group")) groups = is_deepseek ? 8 : 1;
  if (!c.keys.is_said("topk_group")) chosen = is_deepseek ? 4 : 1;
  if (!groups && !chosen) return;
  if (!groups || !chosen || *chosen < 1 || *chosen > *groups)
    return c.keys.refuse("topk_group", "it goes together with n_group and is at most that");
  if (*chosen == *groups) return;
  config.moe_router_num_groups = groups;
  config.moe_router_group_topk = chosen;
  // A group's score is its best two in transformers, its best topk / topk_group in Megatron.
  if (config.moe_router_topk != 2 * *chosen)
    c.keys.refuse("topk_group", "it must be half of num_experts_per_tok");
}

/// Experts in groups, dense layers first: DeepSeek-V3 and GLM-4.
void convert_sigmoid_router(const Conversion& c) {
  auto& config = c.config();
  auto& keys = c.keys;
  config.num_moe_experts = size_named(keys, {"n_routed_experts", "num_local_experts"});
  config.moe_router_topk = keys.size("num_experts_per_tok");
  config.moe_ffn_hidden_size = keys.size("moe_intermediate_size");
  config.moe_router_topk_scaling_factor = keys.required<double>("routed_scaling_factor");
  config.moe_router_load_balancing_type = "seq_aux_loss";
  config.moe_router_score_function = "sigmoid";
  config.moe_router_pre_softmax = true;
  config.moe_router_enable_expert_bias = true;
  config.moe_shared_expert_overlap = true;
  config.moe_grouped_gemm = true;
  // Megatron divides by the sum whenever topk exceeds one.
  const bool divides = config.moe_router_topk > 1;
  if (keys.value_or("norm_topk_prob", true) != divides)
    keys.refuse("norm_topk_prob", divides ? "sigmoid scores are always divided by their sum"
                                          : "the score of a single expert is not divided");
  convert_expert_groups(c);
  const auto first = keys.size("first_k_dense_replace");
  if (config.num_layers > kMaxLayers) return;
  config.moe_layer_freq.assign(static_cast<std::size_t>(config.num_layers), 1);
  std::fill_n(config.moe_layer_freq.begin(), std::min(first, config.num_layers), 0);
}

void convert_latent_attention(const Conversion& c) {
  auto& config = c.config();
  auto& keys = c.keys;
  config.multi_latent_attention = true;
  config.q_lora_rank = keys.maybe<std::int64_t>("q_lora_rank");
  config.kv_lora_rank = keys.size("kv_lora_rank");
  config.qk_head_dim = keys.size("qk_nope_head_dim");
  config.qk_pos_emb_head_dim = keys.size("qk_rope_head_dim");
  config.v_head_dim = keys.size("v_head_dim");
  keys.must_be("qk_head_dim", config.qk_head_dim + config.qk_pos_emb_head_dim);
  keys.must_be("rope_interleave", true);
  keys.must_be("attention_bias", false);
  if (c.options.class_defaults && !config.kv_channels) config.kv_channels = config.qk_pos_emb_head_dim;
}

void convert_deepseek(Conversion& c) {
  auto& config = c.config();
  auto& keys = c.keys;
  config.attention_backend = "fused";
  config.qk_layernorm = true;
  convert_sigmoid_router(c);
  config.moe_router_bias_update_rate = 0.001;
  config.moe_router_dtype = "fp64";
  config.moe_aux_loss_coeff = keys.value_or("aux_loss_alpha", 0.001);
  const auto shared = keys.size("n_shared_experts");
  if (shared > kMaxLayers) return keys.refuse("n_shared_experts", "there are too many");
  config.moe_shared_expert_intermediate_size = *config.moe_ffn_hidden_size * shared;
  config.disable_bf16_reduced_precision_matmul = true;
  fuse(config);
  keys.must_be("topk_method", "noaux_tc");
  keys.must_be("scoring_func", "sigmoid");
  keys.must_be("moe_layer_freq", 1);
  keys.must_be("seq_aux", true);
  c.next_token_layers =
      std::max(c.next_token_layers, named(keys, {"num_nextn_predict_layers", "num_mtp_layers"}).value_or(0));
  c.model.builder.freeze_moe_router = true;
  convert_latent_attention(c);
}

void convert_glm4(const Conversion& c) {
  auto& config = c.config();
  auto& keys = c.keys;
  config.add_qkv_bias = keys.value_or("attention_bias", false);
  config.qk_layernorm = keys.value_or("use_qk_norm", false);
  convert_sigmoid_router(c);
  config.moe_router_bias_update_rate = 0;
  config.moe_router_dtype = "fp32";
  config.moe_shared_expert_intermediate_size = config.moe_ffn_hidden_size;
  keys.must_be("n_shared_experts", 1);
  fuse(config);
  config.mtp_num_layers = named(keys, {"num_nextn_predict_layers", "num_mtp_layers"});
  if (config.mtp_num_layers) config.mtp_loss_scaling_factor = 0.1;
}

void convert_qwen3_vl(const Conversion& c) {
  auto& config = c.config();
  c.keys.must_be("attention_bias", false);
  config.qk_layernorm = true;
  config.masked_softmax_fusion = false;
  config.deallocate_pipeline_outputs = true;
  config.cp_comm_type = "p2p";
  if (c.model.architecture != Architecture::qwen3_vl_moe) return;
  convert_softmax_router(c, {"num_experts", "num_local_experts"}, c.keys.value_or("norm_topk_prob", true));
  config.moe_ffn_hidden_size = c.keys.size("moe_intermediate_size");
  config.moe_router_dtype = "fp32";
  config.moe_permute_fusion = true;
  convert_sparse_layers(c);
}

void convert_architecture(Conversion& c) {
  switch (c.model.architecture) {
    case Architecture::qwen2_moe:
      return convert_qwen2_moe(c);
    case Architecture::qwen3_moe:
      return convert_qwen3_moe(c);
    case Architecture::mixtral:
      return convert_mixtral(c);
    case Architecture::deepseek_v3:
      return convert_deepseek(c);
    case Architecture::glm4_moe:
      return convert_glm4(c);
    case Architecture::qwen2_5_vl:
      c.config().add_qkv_bias = true;
      return;
    case Architecture::qwen3_vl:
    case Architecture::qwen3_vl_moe:
      return convert_qwen3_vl(c);
    default:
      return convert_dense(c);
  }
}

/// Unknown names are dropped with a single warning, except where Megatron is constructed from them directly.
Result<void> apply_overrides(const Conversion& c, std::vector<std::string>& warnings) {
  std::string dropped;
  for (const auto& [name, json] : c.options.overrides) {
    const auto set = set_field(c.config(), name, json);
    if (set) continue;
    if (set.error().code != Errc::not_found || c.model.architecture == Architecture::qwen2_5_vl)
      return fail(Errc::invalid_argument, "override: {}", set.error().message);
    dropped += (dropped.empty() ? "" : ", ") + name;
  }
  if (!dropped.empty()) warnings.push_back("overrides that are not fields are dropped: " + dropped);
  return {};
}

Result<void> replace_keys(Json& json, const std::map<std::string, std::string>& keys) {
  for (const auto& [key, text] : keys) {
    auto value = Json::parse(text, nullptr, false);
    // A word without quotes is text: it comes from a command line.
    const bool is_word = value.is_discarded() && text.find_first_of("{}[]\"") == std::string::npos;
    if (is_word) value = text;
    if (value.is_discarded())
      return fail(Errc::invalid_argument, "the value {} of key '{}' is not JSON", text.substr(0, 60), key);
    json[key] = std::move(value);
  }
  return {};
}

/// The tensors that `troupe convert weights` reads are those that the factors are multiplied with.
Result<void> check_quantization(ConfigReader& keys, std::string_view text,
                                std::vector<std::string>& warnings) {
  const auto* found = keys.find("quantization_config");
  if (found == nullptr || found->empty() || *found == false) return {};
  if (!TRY(scaled_blocks(text))) return {};
  warnings.emplace_back(
      "quantization_config: tensors are fp8 with a factor for each block; what is converted is the model of "
      "their values");
  return {};
}

/// Megatron's rule has no place for layers that predict more than one token, and the others do not need
/// them.
void leave_out_next_tokens(const Conversion& c) {
  auto& config = c.config();
  if (c.next_token_layers > 0)
    c.warnings.push_back(fmt::format(
        "num_nextn_predict_layers is {}: layers from {} on, which predict more tokens, are left out",
        c.next_token_layers, config.num_layers));
  config.mtp_num_layers = 0;
  config.mtp_loss_scaling_factor = 0.1;
}

void pass_over(const ConfigReader& keys, ConvertedModel& result) {
  result.passed_over = keys.of_other_models();
  if (result.passed_over.empty()) return;
  result.warnings.push_back(passed_over_text(result));
}

}  // namespace

std::string passed_over_text(const ConvertedModel& model) {
  return fmt::format("keys of other models, which transformers' {} does not read, are passed over: {}",
                     facts_of(model.config.architecture).name, fmt::join(model.passed_over, ", "));
}

Result<std::string> with_keys(std::string_view text, const std::map<std::string, std::string>& keys) {
  auto json = TRY(parse_json_object(text, "config.json"));
  if (keys.empty()) return std::string(text);
  TRY(replace_keys(json, keys));
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<ConvertedModel> from_huggingface(std::string_view given, const ConvertOptions& options) {
  const auto text = TRY(with_keys(given, options.keys));
  const auto json = TRY(parse_json_object(text, "config.json"));
  ConvertedModel result;
  auto& model = result.config;
  model.architecture = TRY(architecture_of_config(json));
  const Json* nested = nullptr;
  if (has_vision(model.architecture)) {
    const auto found = json.find("text_config");
    if (found != json.end() && found->is_object()) nested = &*found;
  }
  ConfigReader keys(json, nested, "", options.ignored);
  Conversion conversion{keys, options, model, result.warnings};
  auto* limits = options.takes_limits ? &result.limits : nullptr;
  convert_parallel(conversion);
  convert_base(conversion);
  convert_architecture(conversion);
  convert_windows(keys, limits, model);
  TRY(convert_rotary(keys, options, result));
  check_common_keys(keys, model.architecture);
  TRY(check_quantization(keys, text, result.warnings));
  if (has_vision(model.architecture)) TRY(convert_vision(keys, options, model));
  TRY(keys.finish(&model.kept));
  pass_over(keys, result);
  TRY(apply_overrides(conversion, result.warnings));
  if (model.architecture == Architecture::deepseek_v3) leave_out_next_tokens(conversion);
  if (model.transformer.num_layers > kMaxLayers)
    return fail(Errc::invalid_argument, "key 'num_hidden_layers' is {}; at most {} can be converted",
                model.transformer.num_layers, kMaxLayers);
  if (model.builder.vocab_size < 1) return fail(Errc::invalid_argument, "key 'vocab_size' must be positive");
  for (auto& warning : TRY(complete(model.transformer))) result.warnings.push_back(std::move(warning));
  return result;
}

}  // namespace troupe::core
