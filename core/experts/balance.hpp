#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/experts/router.hpp"

namespace troupe::core {

// N tokens, E experts, K choices per token.

/// How tokens were distributed over experts in a batch, a sequence or a lane. Several loads are added in
/// their order; counts in any.
struct ExpertLoad {
  std::vector<std::int64_t> counts;  ///< (E): how often each was chosen, before any are dropped
  /// (E): sums of the tokens' scores (softmax, or sigmoids divided by their sum), in double in token order.
  std::vector<double> score_sums;
  std::int64_t tokens = 0;

  ExpertLoad& operator+=(const ExpertLoad& other);
  friend bool operator==(const ExpertLoad&, const ExpertLoad&) = default;
};

/// `logits` (N, E), `experts` (N, K) as chosen by route().
template <class T>
ExpertLoad expert_load(const RouterOptions& options, std::span<const T> logits,
                       std::span<const std::int32_t> experts);

/// The auxiliary loss of the Switch Transformer as Megatron-Core has it, without its coefficient: E times the
/// sum over experts of (count / (N K)) * (score sum / N). It is 1 when all are chosen equally often.
/// (transformers does not divide by K, and combines all layers.) 0 without tokens.
double balance_loss(const RouterOptions& options, const ExpertLoad& load);

/// What a token's score for an expert changes that loss by, times `scale`, for each choice of the expert.
double balance_of_count(const RouterOptions& options, const ExpertLoad& load, double scale);
/// Adds `scale` times the loss's gradient, in which counts are constants.
template <class T>
void balance_backward(const RouterOptions& options, std::span<const T> logits, const ExpertLoad& load,
                      double scale, std::span<T> d_logits);

/// The z-loss of ST-MoE without its coefficient: the mean over tokens of (ln sum exp logits)^2, in double. 0
/// without tokens.
template <class T>
double z_loss(std::size_t experts, std::span<const T> logits);
template <class T>
void z_loss_backward(std::size_t experts, std::span<const T> logits, double scale, std::span<T> d_logits);

/// Balancing without an auxiliary loss (DeepSeek-V3): each expert's bias increases by `rate` if it was chosen
/// less often than the mean, and decreases if more often. `counts` cover all tokens of a step, on all ranks.
void update_expert_bias(std::span<float> bias, std::span<const std::int64_t> counts, double rate);

}  // namespace troupe::core
