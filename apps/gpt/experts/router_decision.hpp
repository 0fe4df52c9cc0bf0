#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "apps/gpt/experts/expert_activations.hpp"
#include "apps/gpt/experts/expert_config.hpp"
#include "apps/gpt/pass.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

// N rows of a rank, E experts, K choices of a row. In memory of the host, wherever the layer computes.

/// A layer's router and what it says of a rank's rows.
template <class T>
struct RouterRows {
  const ExpertConfig& config;
  std::size_t layer = 0;      ///< of the model, whose biases it has
  std::span<const T> logits;  ///< (N, E)
  std::span<T> weights;       ///< (N, K), written
};

/// Where experts, drops, load and losses go, but not the exchange with other ranks. The losses are multiplied
/// by StepHooks::router_factor.
template <class T>
core::Result<void> decide_alone(const RouterRows<T>& rows, double router_factor, ExpertRoutes& routes);

/// Of the rows of all members that share sequences, by position, `own` says which are the rank's. All decide
/// alike about all, as one rank with whole sequences does, and keep their own; the first says the loss.
struct MembersRows {
  std::vector<std::size_t> own;
  bool is_first = true;
};
/// `logits` are of all rows (rows, E). Own rows behind them, where a sequence was filled up, have no experts.
template <class T>
core::Result<void> decide_together(const RouterRows<T>& rows, std::span<const T> logits,
                                   const MembersRows& members, double router_factor, ExpertRoutes& routes);

/// Of the ranks that compute with the same router.
struct RouterShare {
  bool adds_losses = true;  ///< of those that share the layer, whose gradients are summed, one does
  std::size_t members = 1;  ///< that share each sequence
};
/// Overwrites d_logits (N, E): the gradients through the weights, from those by them (N, K), and those of the
/// router's losses.
template <class T>
void decision_backward(const ExpertConfig& config, std::span<const T> logits, const ExpertRoutes& routes,
                       const RouterShare& share, const StepHooks& hooks, std::span<const T> d_weights,
                       std::span<T> d_logits);

}  // namespace troupe::apps::gpt
