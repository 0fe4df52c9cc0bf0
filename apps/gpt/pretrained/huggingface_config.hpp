#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "apps/gpt/model/config.hpp"
#include "core/dtype.hpp"
#include "core/models/block_scales.hpp"
#include "core/models/model_config.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// What is changed in a config.json while it is read.
struct ReadingOptions {
  std::map<std::string, std::string> keys;  ///< by JSON or a word, in place of what the file says
  std::set<std::string> ignored;            ///< keys that are passed over though their meaning is not known
};

/// What a config.json tells the trainer.
struct HuggingFaceConfig {
  ModelConfig model;  ///< its context is the longest that the model supports
  /// Shorter lengths up to which the trainer computes the same: windows, scalings of longer texts.
  std::vector<core::PositionLimit> limits;
  /// The token between two texts, if the file names one; if it names several, the first.
  std::optional<std::int32_t> end_of_text;
  /// Present for matrices in fp8 that have a factor for each block.
  std::optional<core::ScaledBlocks> blocks;
  std::string passed_over;  ///< a sentence about keys of other models; empty: there are none
};

/// The longest context used by default; models support much longer ones.
inline constexpr std::size_t kDefaultContext = 1024;

/// Reads Llama, Mistral, Mixtral, Qwen2 and Qwen3, the last two with or without experts. Errc::unavailable
/// for another architecture, and otherwise as core::from_huggingface() for what cannot be read, and for what
/// only a trainer does, such as dropout.
core::Result<HuggingFaceConfig> read_huggingface_config(std::string_view text,
                                                        const ReadingOptions& options = {});

/// A config.json for a model that did not begin from one: Llama, or Qwen2 or Qwen3 if only those have its
/// parts, and with experts Mixtral or one of these. Errc::invalid_argument names what none of them has.
core::Result<std::string> write_huggingface_config(const ModelConfig& config, core::DType dtype);

}  // namespace troupe::apps::gpt
