#pragma once

#include <cstdint>
#include <string_view>

#include "core/result.hpp"

namespace troupe::core {

/// Hugging Face models by the name in `architectures` of their config.json.
enum class Architecture : std::uint8_t {
  llama,
  llama_token_classification,
  mistral,
  qwen2,
  mimo,
  qwen3,
  qwen3_token_classification,
  qwen2_moe,
  qwen3_moe,
  mixtral,
  deepseek_v3,
  glm4_moe,
  qwen2_5_vl,
  qwen3_vl,
  qwen3_vl_moe,
  llama4,
  gpt_oss,
};
inline constexpr std::size_t kArchitectures = 17;

struct ArchitectureFacts {
  Architecture architecture;
  std::string_view name;        ///< "LlamaForCausalLM"
  std::string_view model_type;  ///< "llama"
  /// What transformers' class takes for keys that config.json lacks.
  double rope_theta;
  double norm_epsilon;
  std::int64_t positions;
  std::int64_t key_value_heads;  ///< 0: as many as heads
  std::int64_t head_width;       ///< 0: hidden_size / heads
  /// Why there is no conversion; empty if there is one.
  std::string_view missing;
};

const ArchitectureFacts& facts_of(Architecture architecture) noexcept;
/// Errc::unavailable lists all known names.
Result<Architecture> architecture_from_name(std::string_view name);

/// With a head of one output instead of the vocabulary.
bool is_value_model(Architecture architecture) noexcept;
/// Attention with compressed keys and values (MLA).
bool has_latent_attention(Architecture architecture) noexcept;
/// With a vision tower; the language model's sizes may be under "text_config".
bool has_vision(Architecture architecture) noexcept;

}  // namespace troupe::core
