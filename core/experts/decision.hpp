#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/experts/balance.hpp"
#include "core/experts/dispatch.hpp"
#include "core/experts/router.hpp"
#include "core/result.hpp"

namespace troupe::core {

// N rows of a rank, E experts, K choices of a row. In memory of the host, wherever a layer computes.

/// How a layer decides where rows go, and what its router adds to the loss.
struct RouterRule {
  RouterOptions router;
  std::optional<double> capacity_factor;  ///< as expert_capacity(); none: all choices are kept
  double balance = 0;                     ///< coefficient of balance_loss()
  double z_loss = 0;                      ///< coefficient of z_loss()
};

/// What was decided about a rank's rows of a microbatch.
struct RouterDecision {
  std::vector<std::int32_t> experts;  ///< (N, K)
  Dispatch dispatch;
  std::vector<std::int64_t> chosen, dropped;  ///< (E): choices of these rows, and those without room
  ExpertLoad load;                            ///< of the whole microbatch; empty without a balance loss
  /// What the router adds to the loss of the words, of the whole microbatch. One of the ranks that share
  /// sequences has it, and the others have 0.
  double loss = 0;
};

/// What a layer's router says of a rank's rows.
template <class T>
struct RouterRows {
  RouterRule rule;
  std::span<const float> bias;  ///< (E) or empty, as in route()
  std::span<const T> logits;    ///< (N, E)
  std::span<T> weights;         ///< (N, K), written
};

/// Experts, drops, load and losses, which are multiplied by `router_factor`.
template <class T>
Result<void> decide_alone(const RouterRows<T>& rows, double router_factor, RouterDecision& decision);

/// The rows of all members that share sequences, by position; `own` says which are the rank's. All decide
/// alike about all, as one rank with whole sequences does, and keep their own; the first says the loss.
struct MembersRows {
  std::vector<std::size_t> own;
  bool is_first = true;
};
/// `logits` has all rows (rows, E). Own rows behind them, where a sequence was filled up, have no experts.
template <class T>
Result<void> decide_together(const RouterRows<T>& rows, std::span<const T> logits, const MembersRows& members,
                             double router_factor, RouterDecision& decision);

/// Overwrites d_logits (N, E): the gradients through the weights, from those by them (N, K), and those of the
/// router's losses times `scale`. So many members share each sequence.
template <class T>
void decision_backward(const RouterRule& rule, std::span<const T> logits, const RouterDecision& decision,
                       std::size_t members, double scale, std::span<const T> d_weights,
                       std::span<T> d_logits);

}  // namespace troupe::core
