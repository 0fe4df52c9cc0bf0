#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/gpt/text/text_codec.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

struct SamplingOptions {
  double temperature = 0.8;  ///< 0 always takes the most likely token
  std::size_t top_k = 40;    ///< choose among this many most likely tokens; 0: among all
  std::uint64_t seed = 0;
};

/// One token chosen from logits (V) by `uniform` in [0, 1).
std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, double uniform);

/// Logits of the token that follows a sequence.
using NextLogits = std::function<core::Result<std::span<const float>>(std::span<const std::int32_t> tokens)>;

/// Up to `count` tokens that continue `window`, which must not be empty. When `length` tokens are full, the
/// older half is forgotten. It ends earlier after a token for which
/// `is_enough` returns true. That token is the last.
core::Result<std::vector<std::int32_t>> sample_tokens(const NextLogits& next, std::size_t length,
                                                      std::vector<std::int32_t> window, std::size_t count,
                                                      const SamplingOptions& options,
                                                      const std::function<bool(std::int32_t)>& is_enough);

/// The tokens of a prompt, after those that a text begins with. Errc::invalid_argument for what cannot be
/// continued: a prompt without tokens, one that the codec does not take, a token beyond the model's
/// vocabulary.
core::Result<std::vector<std::int32_t>> encode_prompt(std::string_view prompt, std::size_t vocabulary,
                                                      TextCodec& codec);

/// `bytes` bytes of text, or a few more, that continue what encode_prompt() returned; fewer if the model ends
/// the text.
core::Result<std::string> sample_text(const NextLogits& next, std::size_t length,
                                      std::vector<std::int32_t> prompt, std::size_t bytes,
                                      const SamplingOptions& options, TextCodec& codec);

}  // namespace troupe::apps::gpt
