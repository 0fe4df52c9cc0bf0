#include "apps/gpt/pretrained/huggingface_config.hpp"

#include <nlohmann/json.hpp>

#include "core/errors.hpp"
#include "core/models/config_fields.hpp"
#include "core/models/config_reader.hpp"
#include "core/models/model_config.hpp"

namespace troupe::apps::gpt {

namespace {

using core::Architecture;
using core::Errc;
using core::fail;
using core::Result;
using Json = nlohmann::json;

bool is_trained(Architecture architecture) {
  return architecture == Architecture::llama || architecture == Architecture::mistral ||
         architecture == Architecture::qwen2 || architecture == Architecture::qwen3 ||
         architecture == Architecture::mixtral || architecture == Architecture::qwen2_moe ||
         architecture == Architecture::qwen3_moe;
}

std::size_t size_of(std::int64_t value) {
  return value < 0 ? 0 : static_cast<std::size_t>(value);
}

RotaryScaling scaling_of(const core::BuilderConfig& builder, const core::RotaryDetails& details) {
  using Kind = RotaryScaling::Kind;
  if (builder.seq_len_interpolation_factor)
    return {.kind = Kind::linear, .factor = *builder.seq_len_interpolation_factor};
  const auto original = static_cast<double>(details.original_positions);
  if (builder.rope_scaling)
    return {.kind = Kind::llama3,
            .factor = builder.rope_scaling_factor,
            .low_frequency = details.low_frequency,
            .high_frequency = details.high_frequency,
            .original_context = original};
  if (builder.yarn_rotary_scaling_factor)
    return {
        .kind = Kind::yarn,
        .factor = *builder.yarn_rotary_scaling_factor,
        .original_context = static_cast<double>(builder.yarn_original_max_position_embeddings.value_or(0)),
        .fast_turns = builder.yarn_beta_fast.value_or(0),
        .slow_turns = builder.yarn_beta_slow.value_or(0),
        .whole_pairs = builder.yarn_correction_range_round_to_int.value_or(true),
        .attention_factor = details.attention_factor};
  if (!details.short_factors.empty())
    return {.kind = Kind::longrope,
            .original_context = original,
            .attention_factor = details.attention_factor,
            .short_factors = details.short_factors,
            .long_factors = details.long_factors};
  return {};
}

/// Router losses are set on the command line: transformers omits them too, unless requested.
ExpertConfig experts_of(const core::ModelConfig& read) {
  const auto& transformer = read.transformer;
  ExpertConfig experts;
  if (!transformer.num_moe_experts) return experts;
  experts.count = size_of(*transformer.num_moe_experts);
  experts.choices = size_of(transformer.moe_router_topk);
  experts.feed_forward = size_of(transformer.moe_ffn_hidden_size.value_or(0));
  experts.shared_feed_forward = size_of(transformer.moe_shared_expert_intermediate_size.value_or(0));
  experts.shared_gate = read.builder.shared_expert_gate;
  experts.score_before_choice = transformer.moe_router_pre_softmax;
  for (std::int64_t layer = 0; layer < transformer.num_layers; ++layer) {
    if (!transformer.layer_has_experts(layer)) experts.dense_layers.push_back(size_of(layer));
  }
  const bool is_mixtral = read.architecture == Architecture::mixtral;
  experts.names = is_mixtral ? ExpertConfig::Names::mixtral : ExpertConfig::Names::qwen;
  return experts;
}

ModelConfig model_of(const core::ConvertedModel& converted) {
  const auto& read = converted.config;
  const auto& transformer = read.transformer;
  ModelConfig model;
  model.layers = size_of(transformer.num_layers);
  model.heads = size_of(transformer.num_attention_heads);
  model.width = size_of(transformer.hidden_size);
  model.feed_forward = size_of(transformer.ffn_hidden_size.value_or(0));
  model.context = size_of(read.builder.max_sequence_length);
  model.vocabulary = size_of(read.builder.vocab_size);
  model.tied_embeddings = read.builder.share_embeddings_and_output_weights;
  model.rope_base = read.builder.rotary_base;
  model.norm_epsilon = transformer.layernorm_epsilon;
  model.initial_deviation = transformer.init_method_std;
  model.key_value_heads = size_of(transformer.num_query_groups.value_or(0));
  model.head_dimension = size_of(transformer.kv_channels.value_or(0));
  model.query_key_value_bias = transformer.add_qkv_bias;
  // If biases are optional, "attention_bias" includes the output's bias.
  model.attention_output_bias = transformer.add_qkv_bias && read.architecture != Architecture::qwen2 &&
                                read.architecture != Architecture::qwen2_moe;
  model.query_key_norm = transformer.qk_layernorm;
  model.rope_scaling = scaling_of(read.builder, converted.rotary);
  model.experts = experts_of(read);
  return model;
}

std::optional<std::int32_t> token_of(const core::ModelConfig& read, const std::string& key) {
  const auto found = read.kept.find(key);
  if (found == read.kept.end()) return {};
  auto json = Json::parse(found->second, nullptr, false);
  if (json.is_array() && !json.empty()) json = Json(json.front());
  std::int64_t token = -1;
  if (!core::take(json, token) || token < 0 || token >= read.builder.vocab_size) return {};
  return static_cast<std::int32_t>(token);
}

/// What conversions express and the trainer does not do.
Result<void> check_training(const core::ModelConfig& read) {
  const auto& transformer = read.transformer;
  for (const auto& [key, rate] : {std::pair{"attention_dropout", transformer.attention_dropout},
                                  std::pair{"hidden_dropout", transformer.hidden_dropout}}) {
    if (rate != 0)
      return fail(Errc::invalid_argument,
                  "key '{0}' is {1}, and the trainer has no dropout; --key {0}=0 trains without it", key,
                  rate);
  }
  const auto adds_losses = read.kept.find("output_router_logits");
  if (transformer.num_moe_experts && transformer.moe_aux_loss_coeff != 0 && adds_losses != read.kept.end() &&
      adds_losses->second == "true")
    return fail(
        Errc::invalid_argument,
        "key 'output_router_logits' is true, so transformers adds a router loss of its own, which the "
        "trainer does not have; --key output_router_logits=false trains without it, or with that of "
        "Megatron-Core by --balance");
  return {};
}

std::string torch_name(core::DType dtype) {
  return core::put(dtype).get<std::string>();
}

/// The architecture that has exactly the parts of a model with experts.
Result<Architecture> architecture_with_experts(const ModelConfig& config) {
  const ExpertConfig& experts = config.experts;
  const bool has_shared = experts.shared_feed_forward > 0;
  if (experts.bias_rate > 0)
    return fail(
        Errc::invalid_argument,
        "neither Mixtral nor a Qwen has routers with sigmoid scores and biases (--bias-rate), so there "
        "is no config.json for this model");
  if (experts.names == ExpertConfig::Names::mixtral && !config.query_key_norm &&
      !config.query_key_value_bias && !has_shared && !experts.score_before_choice &&
      experts.dense_layers.empty())
    return Architecture::mixtral;
  const bool is_qwen = experts.names == ExpertConfig::Names::qwen && !config.attention_output_bias;
  if (is_qwen && has_shared && experts.shared_gate && config.query_key_value_bias && !config.query_key_norm)
    return Architecture::qwen2_moe;
  if (is_qwen && !has_shared && config.query_key_norm && !config.query_key_value_bias)
    return Architecture::qwen3_moe;
  return fail(
      Errc::invalid_argument,
      "neither Mixtral nor a Qwen with experts has all parts of this model, so there is no config.json "
      "for it");
}

void put_experts(const ModelConfig& config, Architecture architecture, Json& json) {
  const ExpertConfig& experts = config.experts;
  json["num_experts_per_tok"] = experts.choices;
  json["output_router_logits"] = false;
  json["router_aux_loss_coef"] = experts.balance;
  if (architecture == Architecture::mixtral) {
    json["num_local_experts"] = experts.count;
    json["intermediate_size"] = experts.feed_forward;
    json["sliding_window"] = nullptr;
    json["router_jitter_noise"] = 0.0;
    return;
  }
  json["num_experts"] = experts.count;
  json["moe_intermediate_size"] = experts.feed_forward;
  json["norm_topk_prob"] = !experts.score_before_choice;
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = experts.dense_layers;
  if (architecture == Architecture::qwen2_moe)
    json["shared_expert_intermediate_size"] = experts.shared_feed_forward;
}

/// The architecture that has exactly the parts of a model.
Result<Architecture> architecture_for(const ModelConfig& config) {
  const char* missing = nullptr;
  if (config.norm != Norm::rms) missing = "layer norms";
  if (config.activation != Activation::swiglu) missing = "activations other than SwiGLU";
  if (config.attention_output_bias && !config.query_key_value_bias)
    missing = "a bias of the output of attention alone";
  if (missing != nullptr)
    return fail(Errc::invalid_argument,
                "neither Llama nor Qwen has {}, so there is no config.json for this model; train one with "
                "--norm rms and --activation swiglu to export it",
                missing);
  if (config.experts.count > 0) return architecture_with_experts(config);
  if (config.query_key_norm) return Architecture::qwen3;
  return config.query_key_value_bias && !config.attention_output_bias ? Architecture::qwen2
                                                                      : Architecture::llama;
}

Json scaling_json(const RotaryScaling& scaling) {
  switch (scaling.kind) {
    case RotaryScaling::Kind::none:
      break;
    case RotaryScaling::Kind::linear:
      return {{"rope_type", "linear"}, {"factor", scaling.factor}};
    case RotaryScaling::Kind::llama3:
      return {{"rope_type", "llama3"},
              {"factor", scaling.factor},
              {"low_freq_factor", scaling.low_frequency},
              {"high_freq_factor", scaling.high_frequency},
              {"original_max_position_embeddings", static_cast<std::int64_t>(scaling.original_context)}};
    case RotaryScaling::Kind::yarn:
      return {{"rope_type", "yarn"},
              {"factor", scaling.factor},
              {"original_max_position_embeddings", static_cast<std::int64_t>(scaling.original_context)},
              {"beta_fast", scaling.fast_turns},
              {"beta_slow", scaling.slow_turns},
              {"truncate", scaling.whole_pairs},
              {"attention_factor", scaling.attention_factor}};
    case RotaryScaling::Kind::longrope:
      return {{"rope_type", "longrope"},
              {"original_max_position_embeddings", static_cast<std::int64_t>(scaling.original_context)},
              {"short_factor", scaling.short_factors},
              {"long_factor", scaling.long_factors},
              {"attention_factor", scaling.attention_factor}};
  }
  return {};
}

}  // namespace

Result<HuggingFaceConfig> read_huggingface_config(std::string_view text, const ReadingOptions& reading) {
  core::ConvertOptions options;
  options.takes_limits = true;
  options.ignored = reading.ignored;
  const auto replaced = TRY(core::with_keys(text, reading.keys));
  const auto converted = TRY(core::from_huggingface(replaced, options));
  const auto& read = converted.config;
  if (!is_trained(read.architecture))
    return fail(Errc::unavailable,
                "the trainer runs LlamaForCausalLM, MistralForCausalLM, MixtralForCausalLM, "
                "Qwen2ForCausalLM, Qwen3ForCausalLM, Qwen2MoeForCausalLM and Qwen3MoeForCausalLM, found {}; "
                "`troupe convert` knows it, training it does not work yet",
                core::facts_of(read.architecture).name);
  TRY(check_training(read));
  const auto blocks = TRY(core::scaled_blocks(replaced));
  auto passed_over = converted.passed_over.empty() ? std::string() : core::passed_over_text(converted);
  return HuggingFaceConfig{model_of(converted), converted.limits, token_of(read, "eos_token_id"), blocks,
                           std::move(passed_over)};
}

Result<std::string> write_huggingface_config(const ModelConfig& config, core::DType dtype) {
  const auto architecture = TRY(architecture_for(config));
  const auto& facts = core::facts_of(architecture);
  Json json = {{"architectures", {std::string(facts.name)}},
               {"model_type", std::string(facts.model_type)},
               {"torch_dtype", torch_name(dtype)},
               {"num_hidden_layers", config.layers},
               {"hidden_size", config.width},
               {"num_attention_heads", config.heads},
               {"num_key_value_heads", config.key_heads()},
               {"head_dim", config.head_size()},
               {"intermediate_size", config.feed_forward},
               {"hidden_act", "silu"},
               {"max_position_embeddings", config.context},
               {"vocab_size", config.vocabulary},
               {"tie_word_embeddings", config.tied_embeddings},
               {"rope_theta", config.rope_base},
               {"rope_scaling", scaling_json(config.rope_scaling)},
               {"rms_norm_eps", config.norm_epsilon},
               {"initializer_range", config.initial_deviation},
               {"attention_dropout", 0.0},
               {"bos_token_id", nullptr},
               {"eos_token_id", nullptr}};
  const bool is_qwen = facts.model_type.starts_with("qwen");
  if (architecture == Architecture::llama || facts.model_type.starts_with("qwen3"))
    json["attention_bias"] = config.query_key_value_bias;
  if (is_qwen) json["use_sliding_window"] = false;
  if (config.experts.count > 0) put_experts(config, architecture, json);
  return json.dump(2) + "\n";
}

}  // namespace troupe::apps::gpt
