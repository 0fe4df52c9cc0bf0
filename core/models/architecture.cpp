#include "core/models/architecture.hpp"

#include <array>
#include <string>

#include "core/errors.hpp"

namespace troupe::core {

namespace {

// In the order of the enumeration, with the defaults of rope_theta, rms_norm_eps, max_position_embeddings,
// num_key_value_heads and head_dim.
// clang-format off
constexpr std::array<ArchitectureFacts, kArchitectures> kFacts{{
    {Architecture::llama, "LlamaForCausalLM", "llama", 1e4, 1e-6, 2048, 0, 0, {}},
    {Architecture::llama_token_classification, "LlamaForTokenClassification", "llama", 1e4, 1e-6, 2048, 0, 0,
     {}},
    {Architecture::mistral, "MistralForCausalLM", "mistral", 1e4, 1e-6, 131072, 8, 0, {}},
    {Architecture::qwen2, "Qwen2ForCausalLM", "qwen2", 1e4, 1e-6, 32768, 32, 0, {}},
    {Architecture::mimo, "MiMoForCausalLM", "mimo", 1e4, 1e-6, 32768, 32, 0, {}},
    {Architecture::qwen3, "Qwen3ForCausalLM", "qwen3", 1e4, 1e-6, 32768, 32, 128, {}},
    {Architecture::qwen3_token_classification, "Qwen3ForTokenClassification", "qwen3", 1e4, 1e-6, 32768, 32,
     128, {}},
    {Architecture::qwen2_moe, "Qwen2MoeForCausalLM", "qwen2_moe", 1e4, 1e-6, 32768, 16, 0, {}},
    {Architecture::qwen3_moe, "Qwen3MoeForCausalLM", "qwen3_moe", 1e4, 1e-6, 32768, 4, 0, {}},
    {Architecture::mixtral, "MixtralForCausalLM", "mixtral", 1e6, 1e-5, 131072, 8, 0, {}},
    {Architecture::deepseek_v3, "DeepseekV3ForCausalLM", "deepseek_v3", 1e4, 1e-6, 4096, 128, 0, {}},
    {Architecture::glm4_moe, "Glm4MoeForCausalLM", "glm4_moe", 1e4, 1e-5, 131072, 8, 0, {}},
    {Architecture::qwen2_5_vl, "Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", 1e6, 1e-5, 32768, 8, 0,
     {}},
    {Architecture::qwen3_vl, "Qwen3VLForConditionalGeneration", "qwen3_vl", 5e6, 1e-6, 128000, 32, 128, {}},
    {Architecture::qwen3_vl_moe, "Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe", 5e6, 1e-6, 128000, 16,
     0, {}},
    {Architecture::llama4, "Llama4ForConditionalGeneration", "llama4", 5e5, 1e-5, 131072, 8, 128,
     "its chunked attention and interleaved experts have no fields"},
    {Architecture::gpt_oss, "GptOssForCausalLM", "gpt_oss", 1.5e5, 1e-5, 131072, 8, 64,
     "its attention sinks and clamped activations have no fields"},
}};
// clang-format on

}  // namespace

const ArchitectureFacts& facts_of(Architecture architecture) noexcept {
  return kFacts[static_cast<std::size_t>(architecture)];
}

Result<Architecture> architecture_from_name(std::string_view name) {
  std::string known;
  for (const auto& facts : kFacts) {
    if (facts.name == name) return facts.architecture;
    known += (known.empty() ? "" : ", ") + std::string(facts.name);
  }
  return fail(Errc::unavailable, "architecture '{}' is not known; known are {}", name.substr(0, 80), known);
}

bool is_value_model(Architecture architecture) noexcept {
  return architecture == Architecture::llama_token_classification ||
         architecture == Architecture::qwen3_token_classification;
}

bool has_latent_attention(Architecture architecture) noexcept {
  return architecture == Architecture::deepseek_v3;
}

bool has_vision(Architecture architecture) noexcept {
  return architecture == Architecture::qwen2_5_vl || architecture == Architecture::qwen3_vl ||
         architecture == Architecture::qwen3_vl_moe;
}

}  // namespace troupe::core
