#include "apps/gpt/model/activations.hpp"

#include "apps/gpt/layers/cross_entropy.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;
using core::Result;

namespace {

// BLAS uses 32-bit integers for sizes.
constexpr std::size_t kMostRows = std::size_t{1} << 24;

}  // namespace

Result<void> check_shape(const ModelConfig& config, BatchShape shape) {
  if (shape.batch < 1 || shape.batch > kMostRows / config.context) {
    return fail(Errc::invalid_argument, "the batch must be 1..{} sequences, found {}",
                kMostRows / config.context, shape.batch);
  }
  if (shape.length < 1 || shape.length > config.context) {
    return fail(Errc::invalid_argument, "a sequence must have 1..{} tokens (the context), found {}",
                config.context, shape.length);
  }
  return {};
}

Result<void> check_tokens(std::span<const std::int32_t> tokens, std::size_t vocabulary) {
  for (const std::int32_t token : tokens) {
    if (token < 0 || static_cast<std::size_t>(token) >= vocabulary) {
      return fail(Errc::invalid_argument,
                  "token {} is outside the vocabulary of {}; choose a vocabulary that covers the text", token,
                  vocabulary);
    }
  }
  return {};
}

Result<void> check_targets(std::span<const std::int32_t> targets, std::size_t vocabulary) {
  for (const std::int32_t target : targets) {
    if (target != kNoTarget) TRY(check_tokens(std::span(&target, 1), vocabulary));
  }
  return {};
}

Result<void> check_keep(const ModelConfig& config, Keep keep) {
  if (keep == Keep::activations || config.experts.count == 0) return {};
  return fail(Errc::unavailable,
              "activations of experts are kept, not computed again in backward; leave --recompute out for a "
              "model with experts");
}

}  // namespace troupe::apps::gpt
