#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.hpp"
#include "core/models/architecture.hpp"
#include "core/models/transformer_config.hpp"
#include "core/plan/mesh.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// What Megatron's model builder needs in addition to the transformer's configuration.
struct BuilderConfig {
  std::int64_t vocab_size = 0;
  std::int64_t max_sequence_length = 0;
  double rotary_base = 10000;
  double rotary_percent = 1;
  std::optional<double> seq_len_interpolation_factor;  ///< linear scaling of positions
  bool rope_scaling = false;                           ///< Llama 3's, with rope_scaling_factor
  double rope_scaling_factor = 8;
  std::optional<std::string> position_embedding_type;  ///< "yarn", where attention is not latent
  std::optional<double> yarn_rotary_scaling_factor;    ///< set with yarn only, like those below
  std::optional<std::int64_t> yarn_original_max_position_embeddings;
  std::optional<double> yarn_beta_fast;
  std::optional<double> yarn_beta_slow;
  std::optional<double> yarn_mscale;  ///< null, like the next one: 1 and 0
  std::optional<double> yarn_mscale_all_dim;
  std::optional<bool> yarn_correction_range_round_to_int;
  bool share_embeddings_and_output_weights = false;
  bool value_head = false;
  bool shared_expert_gate = false;
  bool freeze_moe_router = false;

  friend bool operator==(const BuilderConfig&, const BuilderConfig&) = default;
};

/// The vision tower and its projector.
struct VisionConfig {
  std::int64_t num_layers = 0;
  std::int64_t hidden_size = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t ffn_hidden_size = 0;
  std::int64_t in_channels = 3;
  std::int64_t patch_size = 0;
  std::int64_t temporal_patch_size = 0;
  std::int64_t spatial_merge_size = 0;
  std::int64_t out_hidden_size = 0;
  std::int64_t projector_ffn_hidden_size = 0;
  std::int64_t window_size = 0;              ///< 0: all attention is full
  std::int64_t num_position_embeddings = 0;  ///< 0: rotary only
  std::vector<std::int64_t> full_attention_blocks;
  std::vector<std::int64_t> deepstack_visual_indexes;

  friend bool operator==(const VisionConfig&, const VisionConfig&) = default;
};

struct ModelConfig {
  Architecture architecture = Architecture::llama;
  TransformerConfig transformer;
  BuilderConfig builder;
  std::optional<VisionConfig> vision;
  /// Keys of config.json that change no maths, such as token ids: name to JSON. A dot enters an object.
  std::map<std::string, std::string> kept;

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

struct ConvertOptions {
  DType dtype = DType::bf16;
  MeshSizes mesh;
  int virtual_pipeline = 0;  ///< chunks of layers per pipeline stage; 0: none
  /// Fills in the head_dim of DeepSeek as transformers' class does: the rotary width, not hidden_size /
  /// heads.
  bool class_defaults = false;
  /// For a caller that knows how long sequences become: what changes nothing up to a number of positions is
  /// listed in ConvertedModel::limits, and what Megatron has no field for is in ConvertedModel::rotary.
  /// Otherwise limits must not be reached by the model's own positions, and the rest is refused.
  bool takes_limits = false;
  /// Keys of config.json as JSON, which replace those of the file.
  std::map<std::string, std::string> keys;
  /// Fields of Megatron as JSON, which override what the file says.
  std::map<std::string, std::string> overrides;
  /// Keys of config.json that are skipped although their meaning is unknown.
  std::set<std::string> ignored;
};

/// Beyond this many positions a key changes the maths.
struct PositionLimit {
  std::string key;
  std::int64_t positions = 0;
};

/// How positions are scaled, beyond what BuilderConfig says.
struct RotaryDetails {
  double low_frequency = 1;  ///< for llama3, like the next two
  double high_frequency = 4;
  std::int64_t original_positions = 8192;  ///< of longrope too
  double attention_factor = 1;             ///< of cosines and sines: yarn and longrope
  std::vector<double> short_factors;       ///< of longrope, one per pair: up to the original positions
  std::vector<double> long_factors;        ///< for longer sequences
};

struct ConvertedModel {
  ModelConfig config;
  std::vector<std::string> warnings;
  std::vector<PositionLimit> limits;  ///< with ConvertOptions::takes_limits
  RotaryDetails rotary;               ///< in the same case
  /// Keys that transformers' classes for other models read and the one for this model does not; a warning
  /// lists them.
  std::vector<std::string> passed_over;
};

/// The file with keys replaced, by JSON or a word. Errc::corrupt for text that is not a JSON object.
Result<std::string> with_keys(std::string_view text, const std::map<std::string, std::string>& keys);

/// A sentence about ConvertedModel::passed_over, which is not empty.
std::string passed_over_text(const ConvertedModel& model);

/// Megatron's configuration of the model described by `text`, a config.json. Values come, from lowest to
/// highest precedence, from what all models share, the architecture, its attention, the overrides, and the
/// layers that predict more than one token. A missing key has the value that transformers' class gives it,
/// and null usually means the same. Errc::corrupt for text that is not a JSON object; Errc::unavailable for a
/// model without a conversion; Errc::invalid_argument names a key that is missing, has the wrong type, or
/// would change the maths and has no field.
Result<ConvertedModel> from_huggingface(std::string_view text, const ConvertOptions& options);

/// The model's config.json. Errc::invalid_argument for values that transformers has no key for.
Result<std::string> to_huggingface(const ModelConfig& config);

/// The complete configuration as a JSON object.
std::string to_text(const ModelConfig& config);
/// Errc::corrupt names what is wrong: a field that is unknown, missing or of the wrong type.
Result<ModelConfig> parse_model_config(std::string_view text);

}  // namespace troupe::core
