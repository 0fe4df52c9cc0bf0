#pragma once

#include <span>

#include "apps/gpt/model/expert_activations.hpp"
#include "apps/gpt/model/pass.hpp"
#include "apps/gpt/model/sequence_part.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// The rows that a router decides about.
struct ExpertShape {
  const ExpertConfig& config;
  std::size_t rows = 0;       ///< N
  std::size_t sequences = 1;  ///< that the rows are of, or parts of
  /// If ranks share the sequences: each has rows of its own, and what is decided about rows of a microbatch
  /// together is decided about those of all members.
  SequenceMember member{};
};

/// What the router of a layer decides by layer.logits (N, E): layer.sent.weights (N, K) and layer.routes,
/// except the exchange; in host memory. If ranks share sequences, `all` has the logits of all members by
/// position: then each member decides about all rows as one rank with whole sequences does, and keeps its
/// own.
template <class T>
core::Result<void> choose_experts(const ExpertShape& shape, const ExpertActivations<T>& layer, const T* all,
                                  const StepHooks& hooks);

/// Overwrites d_logits (N, E): the gradients through the weights, from those with respect to them (N, K), and
/// those of the router's losses. Nothing of d_weights is kept.
template <class T>
void choice_backward(const ExpertShape& shape, const ExpertActivations<T>& layer, const StepHooks& hooks,
                     std::span<T> d_weights, std::span<T> d_logits);

}  // namespace troupe::apps::gpt
