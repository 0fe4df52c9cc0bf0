#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "apps/gpt/text/data.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

struct Perplexity {
  double loss = 0;           ///< mean over the learned tokens, in nats
  double perplexity = 0;     ///< e to the power of the loss
  std::uint64_t tokens = 0;  ///< learned tokens
};

/// Mean loss of a microbatch over its learned tokens.
using BatchLoss = std::function<core::Result<double>(std::span<const std::int32_t> tokens,
                                                     std::span<const std::int32_t> targets)>;

/// Over a whole text: each token is a target once, and sees the tokens before it in its sequence. `shape` is
/// that of the microbatches, for which `loss` must accept kNoTarget.
core::Result<Perplexity> perplexity(const TokenText& text, BatchShape shape, const BatchLoss& loss);

}  // namespace troupe::apps::gpt
