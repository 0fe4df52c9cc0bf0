#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/result.hpp"

namespace troupe::core {

// N tokens, E experts, K choices of each token. Every sum over the experts of a token runs in the order that
// is given here, in T, and no token's numbers depend on another's: so they are the same however the tokens
// are spread over ranks.

enum class ScoreFunction : std::uint8_t { softmax, sigmoid };

/// How a token chooses its experts and weighs them, as Megatron-Core's topk_routing_with_score_function().
struct RouterOptions {
  std::size_t experts = 0;
  std::size_t choices = 2;
  ScoreFunction score = ScoreFunction::softmax;
  /// Softmax only: over all experts and then the choice; otherwise over the chosen ones alone. Sigmoids are
  /// of each expert alone.
  bool score_before_choice = true;
  /// The chosen scores are divided by their sum.
  bool normalise = false;
  double scale = 1;  ///< multiplies the weights in the end
  /// Experts are in this many groups of neighbours, of which a token may choose from the best
  /// `chosen_groups`; a group is as good as the sum of its best choices / chosen_groups experts.
  std::size_t groups = 1;
  std::size_t chosen_groups = 1;
};

/// Errc::invalid_argument names the first option that cannot be right.
Result<void> validate(const RouterOptions& options);

/// What the tokens chose, best first; of two that are as good, the one with the lower number. A logit that is
/// not a number is chosen or not by its number alone, so that all ranks go on alike.
template <class T>
struct Choices {
  std::span<std::int32_t> experts;  ///< (N, K)
  std::span<T> weights;             ///< (N, K)
};

/// `logits` are (N, E). `bias`, (E) or empty, is added to the scores for the choice alone (sigmoids only:
/// balancing without an auxiliary loss). Softmax over all: the greatest logit is subtracted and the
/// exponentials are added from expert 0 on; over the chosen ones: from the best choice on, as are all sums
/// over choices.
template <class T>
void route(const RouterOptions& options, std::span<const T> logits, std::span<const T> bias,
           const Choices<T>& choices);

/// Adds to `d_logits` (N, E) what a loss changes with them through the weights, of which it changes by
/// `d_weights` (N, K). The choice itself has no gradient.
template <class T>
void route_backward(const RouterOptions& options, std::span<const T> logits,
                    std::span<const std::int32_t> experts, std::span<const T> d_weights,
                    std::span<T> d_logits);

/// The scores of one token's experts: softmax over all, or sigmoids.
template <class T>
void expert_scores(ScoreFunction score, std::span<const T> logits, std::span<T> scores);

}  // namespace troupe::core
