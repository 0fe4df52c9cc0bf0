#include "core/models/huggingface_rules.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "core/errors.hpp"

namespace troupe::core {

namespace {

using Json = nlohmann::json;

constexpr std::array<std::string_view, 69> kHarmless{
    // clang-format off
    "architectures", "auto_map", "_name_or_path", "name_or_path", "model_type", "transformers_version",
    "torch_dtype", "dtype", "use_cache", "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id",
    "decoder_start_token_id", "image_token_id", "video_token_id", "vision_start_token_id",
    "vision_end_token_id", "vision_token_id", "image_token_index", "tokenizer_class", "id2label",
    "label2id", "num_labels", "problem_type", "finetuning_task", "task_specific_params", "prefix",
    "attn_implementation", "_attn_implementation", "_attn_implementation_autoset", "_commit_hash",
    "output_attentions", "output_hidden_states", "output_router_logits", "return_dict", "torchscript",
    "use_bfloat16", "tf_legacy_loss", "pretraining_tp", "ep_size", "chunk_size_feed_forward",
    "is_encoder_decoder", "is_decoder", "max_length", "min_length", "do_sample", "early_stopping",
    "num_beams", "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "typical_p",
    "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
    "bad_words_ids", "num_return_sequences", "output_scores", "return_dict_in_generate",
    "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values",
    "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens"
    // clang-format on
};

struct RotaryScaling {
  std::string type;  ///< empty: none
  Json values = Json::object();
};

/// Values built into Megatron's Llama 3 scaling.
constexpr double kLlama3LowFrequency = 1;
constexpr double kLlama3HighFrequency = 4;
constexpr std::int64_t kLlama3Positions = 8192;

bool is_neutral(const std::string& type) {
  return type == "default" || type == "mrope" || type == "rope";
}

/// rope_scaling takes precedence over rope_parameters, which replaces it in newer files.
Result<RotaryScaling> scaling_of(ConfigReader& keys) {
  RotaryScaling scaling;
  const auto* old = keys.find("rope_scaling");
  const auto* parameters = keys.find("rope_parameters");
  const auto* values = old != nullptr ? old : parameters;
  if (values == nullptr) return scaling;
  if (!values->is_object())
    return fail(Errc::invalid_argument, "key 'rope_scaling' must be an object or null");
  scaling.values = *values;
  for (const char* key : {"type", "rope_type"}) {
    const auto found = values->find(key);
    if (found == values->end() || found->is_null()) continue;
    if (!found->is_string()) return fail(Errc::invalid_argument, "key 'rope_scaling.{}' is not text", key);
    scaling.type = found->get<std::string>();
  }
  if (scaling.type.empty() && values->contains("factor")) scaling.type = "linear";
  if (is_neutral(scaling.type)) scaling.type.clear();
  return scaling;
}

void convert_theta(ConfigReader& keys, ModelConfig& model) {
  auto theta = keys.maybe<double>("rope_theta");
  const auto* parameters = keys.find("rope_parameters");
  if (!theta && parameters != nullptr && parameters->is_object()) {
    const auto found = parameters->find("rope_theta");
    double value = 0;
    if (found != parameters->end() && !found->is_null()) {
      if (take(*found, value)) theta = value;
      if (!theta) keys.complain("key 'rope_parameters.rope_theta' is not a number");
    }
  }
  model.builder.rotary_base = theta.value_or(facts_of(model.architecture).rope_theta);
}

void scale_latent_attention(ConfigReader& values, const std::string& type, TransformerConfig& config) {
  config.rope_type = type.empty() ? "rope" : type;
  if (config.rope_type != "rope" && config.rope_type != "yarn")
    values.refuse("type", "only rope and yarn are there for this attention");
  config.rotary_scaling_factor = values.value_or("factor", 1.0);
  config.original_max_position_embeddings =
      values.value_or("original_max_position_embeddings", std::int64_t{4096});
  config.beta_fast = values.value_or("beta_fast", 32.0);
  config.beta_slow = values.value_or("beta_slow", 1.0);
  config.mscale = values.value_or("mscale", 1.0);
  config.mscale_all_dim = values.value_or("mscale_all_dim", 1.0);
}

void scale_positions(ConfigReader& values, const std::string& type, BuilderConfig& builder) {
  if (type == "linear") {
    builder.seq_len_interpolation_factor = values.required<double>("factor");
  } else if (type == "llama3") {
    builder.rope_scaling = true;
    builder.rope_scaling_factor = values.required<double>("factor");
    const bool built_in = values.required<double>("low_freq_factor") == kLlama3LowFrequency &&
                          values.required<double>("high_freq_factor") == kLlama3HighFrequency &&
                          values.size("original_max_position_embeddings") == kLlama3Positions;
    if (!built_in)
      values.refuse("low_freq_factor", "only 1, 4 and 8192 positions are there for the type llama3");
  } else if (!type.empty()) {
    values.refuse("type", "'" + type + "' is not a scaling that this model can have");
  }
}

constexpr auto kWindowless = std::array{Architecture::llama,       Architecture::llama_token_classification,
                                        Architecture::deepseek_v3, Architecture::glm4_moe,
                                        Architecture::mistral,     Architecture::mixtral};

/// Every layer attends to all previous tokens.
void check_windows(ConfigReader& keys, Architecture architecture) {
  keys.must_be("use_sliding_window", false);
  keys.find("max_window_layers");  // relevant only with windows
  const auto window = keys.maybe<std::int64_t>("sliding_window");
  const bool always = std::find(kWindowless.begin(), kWindowless.end(), architecture) != kWindowless.end();
  if (window && always) keys.refuse("sliding_window", "every layer attends to all that came before");
  if (architecture == Architecture::mistral && !keys.is_said("sliding_window"))
    keys.refuse("sliding_window", "without the key transformers takes 4096; say null for none");
  const auto* layers = keys.find("layer_types");
  if (layers == nullptr) return;
  bool full = layers->is_array();
  if (full) {
    for (const auto& type : *layers) full = full && type == "full_attention";
  }
  if (!full) keys.refuse("layer_types", "only full_attention is there");
}

const std::set<std::string_view>& harmless_vision_keys() {
  static const std::set<std::string_view> kKeys{"model_type", "tokens_per_second", "initializer_range",
                                                "dtype",      "torch_dtype",       "in_chans"};
  return kKeys;
}

/// The tower of Qwen2.5-VL has the same sizes in every model except for the width of its layers.
void convert_fixed_tower(ConfigReader& keys, const ConvertOptions& options, ModelConfig& model) {
  auto& vision = *model.vision;
  const auto layers = model.transformer.num_layers;
  vision.num_layers = 32 * std::max(1, options.virtual_pipeline);
  vision.hidden_size = 1280;
  vision.num_attention_heads = 16;
  vision.ffn_hidden_size = layers == 28 || layers == 36 ? 3420 : 3456;
  vision.patch_size = 14;
  vision.temporal_patch_size = 2;
  vision.spatial_merge_size = 2;
  vision.window_size = 112;
  vision.full_attention_blocks = {7, 15, 23, 31};
  vision.projector_ffn_hidden_size = vision.hidden_size * 4;
  vision.out_hidden_size = model.transformer.hidden_size;
  keys.must_be("depth", 32);
  keys.must_be("hidden_size", vision.hidden_size);
  keys.must_be("num_heads", vision.num_attention_heads);
  keys.must_be("intermediate_size", vision.ffn_hidden_size);
  keys.must_be("patch_size", vision.patch_size);
  keys.must_be("spatial_patch_size", vision.patch_size);
  keys.must_be("temporal_patch_size", vision.temporal_patch_size);
  keys.must_be("spatial_merge_size", vision.spatial_merge_size);
  keys.must_be("window_size", vision.window_size);
  keys.must_be("fullatt_block_indexes", vision.full_attention_blocks);
  keys.must_be("in_channels", vision.in_channels);
  keys.must_be("hidden_act", "silu");
  keys.must_be("out_hidden_size", vision.out_hidden_size);
}

void copy_tower(ConfigReader& keys, ModelConfig& model) {
  auto& vision = *model.vision;
  vision.num_layers = keys.size("depth");
  vision.hidden_size = keys.size("hidden_size");
  vision.num_attention_heads = keys.size("num_heads");
  vision.ffn_hidden_size = keys.size("intermediate_size");
  vision.in_channels = keys.value_or("in_channels", std::int64_t{3});
  vision.patch_size = keys.size("patch_size");
  vision.temporal_patch_size = keys.size("temporal_patch_size");
  vision.spatial_merge_size = keys.size("spatial_merge_size");
  vision.num_position_embeddings = keys.size("num_position_embeddings");
  vision.out_hidden_size = keys.size("out_hidden_size");
  vision.deepstack_visual_indexes = keys.value_or("deepstack_visual_indexes", std::vector<std::int64_t>{});
  if (vision.spatial_merge_size <= 64 && vision.hidden_size <= (std::int64_t{1} << 20))
    vision.projector_ffn_hidden_size =
        vision.hidden_size * vision.spatial_merge_size * vision.spatial_merge_size;
  keys.must_be("hidden_act", "gelu_pytorch_tanh");
}

}  // namespace

const std::set<std::string_view>& harmless_keys() {
  static const std::set<std::string_view> kKeys(kHarmless.begin(), kHarmless.end());
  return kKeys;
}

void check_common_keys(ConfigReader& keys, Architecture architecture) {
  keys.must_be("hidden_act", "silu");
  keys.must_be("mlp_bias", false);
  keys.find("attention_bias");  // optional biases were read before; the others are always or never present
  keys.must_be("use_mrope", false);
  keys.must_be("add_cross_attention", false);
  keys.must_be("tie_encoder_decoder", false);
  keys.must_be("pruned_heads", Json::object());
  // GLM has a field for it.
  if (architecture != Architecture::glm4_moe) keys.must_be("partial_rotary_factor", 1.0);
  if (is_value_model(architecture)) {
    keys.must_be("classifier_dropout", 0.0);
  } else {
    keys.find("classifier_dropout");
  }
  const auto* quantized = keys.find("quantization_config");
  if (quantized != nullptr && !quantized->empty() && *quantized != false)
    keys.refuse("quantization_config",
                "convert the weights to bf16 first (fp8: `troupe convert weights`), then set it to null");
  check_windows(keys, architecture);
}

Result<void> convert_rotary(ConfigReader& keys, const ConvertOptions& options, ModelConfig& model) {
  const auto scaling = TRY(scaling_of(keys));
  convert_theta(keys, model);
  ConfigReader values(scaling.values, nullptr, "rope_scaling.", options.ignored);
  for (const char* key : {"type", "rope_type", "rope_theta"}) values.find(key);
  auto& config = model.transformer;
  if (has_latent_attention(model.architecture)) {
    scale_latent_attention(values, scaling.type, config);
    config.rotary_base = model.builder.rotary_base;
  } else {
    scale_positions(values, scaling.type, model.builder);
  }
  if (const auto part = values.maybe<double>("partial_rotary_factor")) {
    model.builder.rotary_percent = *part;
    if (model.architecture != Architecture::glm4_moe) values.must_be("partial_rotary_factor", 1.0);
  }
  if (has_vision(model.architecture)) {
    config.mrope_section = values.value_or("mrope_section", std::vector<std::int64_t>{});
    if (model.architecture == Architecture::qwen2_5_vl && config.mrope_section.empty())
      values.complain("key 'rope_scaling.mrope_section' is missing");
    if (config.mrope_section.empty()) config.mrope_section = {24, 20, 20};
    if (model.architecture != Architecture::qwen2_5_vl) values.must_be("mrope_interleaved", true);
  }
  // Without scaling, other values are meaningless.
  if (scaling.type.empty())
    for (const char* key : {"factor", "original_max_position_embeddings"}) values.find(key);
  return values.finish({}, nullptr);
}

Result<void> convert_vision(ConfigReader& keys, const ConvertOptions& options, ModelConfig& model) {
  static const Json kNothing = Json::object();
  const auto* found = keys.find("vision_config");
  keys.find("text_config");
  if (found != nullptr && !found->is_object())
    return fail(Errc::invalid_argument, "key 'vision_config' must be an object");
  static const Json kRotary = {{"rope_theta", 10000.0}, {"rope_type", "axial"}};
  ConfigReader vision(found != nullptr ? *found : kNothing, nullptr, "vision_config.", options.ignored);
  model.vision.emplace();
  vision.must_be("rope_parameters", kRotary);
  if (model.architecture == Architecture::qwen2_5_vl) {
    convert_fixed_tower(vision, options, model);
  } else {
    copy_tower(vision, model);
  }
  return vision.finish(harmless_vision_keys(), &model.kept);
}

}  // namespace troupe::core
