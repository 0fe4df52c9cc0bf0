#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "apps/gpt/config.hpp"
#include "core/dtype.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// What a config.json tells the trainer.
struct HuggingFaceConfig {
  ModelConfig model;  ///< its context is the longest that the model supports
  /// The token between two texts, if the file names one; if it names several, the first.
  std::optional<std::int32_t> end_of_text;
};

/// The longest context used by default; models support much longer ones.
inline constexpr std::size_t kDefaultContext = 1024;

/// Reads Llama, Mistral, Mixtral, Qwen2 and Qwen3, the last two with or without experts. Errc::unavailable
/// for another architecture, and otherwise as core::from_huggingface() for what cannot be read.
core::Result<HuggingFaceConfig> read_huggingface_config(std::string_view text);

/// A config.json for a model that did not begin from one: Llama, or Qwen2 or Qwen3 if only those have its
/// parts, and with experts Mixtral or one of these. Errc::invalid_argument names what none of them has.
core::Result<std::string> write_huggingface_config(const ModelConfig& config, core::DType dtype);

}  // namespace troupe::apps::gpt
