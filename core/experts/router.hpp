#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/result.hpp"

namespace troupe::core {

// N tokens, E experts, K choices per token. Every sum over a token's experts is computed in the order given
// here, in T, and no token's numbers depend on another's: so they are the same however the tokens are
// distributed over ranks.

enum class ScoreFunction : std::uint8_t { softmax, sigmoid };

/// How a token chooses its experts and weights them, as Megatron-Core's topk_routing_with_score_function().
struct RouterOptions {
  std::size_t experts = 0;
  std::size_t choices = 2;
  ScoreFunction score = ScoreFunction::softmax;
  /// Softmax only: over all experts before the choice; if false, over the chosen ones only. Sigmoids are
  /// computed for each expert separately.
  bool score_before_choice = true;
  /// The chosen scores are divided by their sum.
  bool normalise = false;
  double scale = 1;  ///< multiplies the final weights
  /// Experts form this many groups of neighbours; a token may choose from the best `chosen_groups`. A group's
  /// score is the sum of its best choices / chosen_groups experts.
  std::size_t groups = 1;
  std::size_t chosen_groups = 1;

  /// The same with biases that even out the load: scores are sigmoids, the chosen ones divided by their sum.
  RouterOptions with_biases() const;
};

/// Errc::invalid_argument names the first invalid option.
Result<void> validate(const RouterOptions& options);

/// What the tokens chose, best first; the lower number wins a tie. A NaN logit is chosen or not by its
/// expert's number alone, so that all ranks proceed alike.
template <class T>
struct Choices {
  std::span<std::int32_t> experts;  ///< (N, K)
  std::span<T> weights;             ///< (N, K)
};

/// `logits` are (N, E). `bias`, (E) or empty, is added to the scores for the choice only (sigmoids only:
/// balancing without an auxiliary loss). Softmax over all experts: the greatest logit is subtracted and the
/// exponentials are added from expert 0 on; over the chosen ones: from the best choice on, as are all sums
/// over choices.
template <class T>
void route(const RouterOptions& options, std::span<const T> logits, std::span<const T> bias,
           const Choices<T>& choices);

/// Adds to `d_logits` (N, E) the gradient that reaches the logits through the weights, whose gradient is
/// `d_weights` (N, K). The choice itself has no gradient.
template <class T>
void route_backward(const RouterOptions& options, std::span<const T> logits,
                    std::span<const std::int32_t> experts, std::span<const T> d_weights,
                    std::span<T> d_logits);

/// The scores of one token's experts: softmax over all, or sigmoids.
template <class T>
void expert_scores(ScoreFunction score, std::span<const T> logits, std::span<T> scores);

}  // namespace troupe::core
