#pragma once

#include <span>

#include "apps/gpt/model/expert_activations.hpp"
#include "apps/gpt/model/expert_shape.hpp"
#include "apps/gpt/model/pass.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// What the router of a layer decides by layer.logits (N, E): layer.weights (N, K) and layer.routes, but for
/// the exchange. Members that share sequences hand each other their logits, and each decides about the rows
/// of all as one rank with whole sequences does, in the order of their positions; of that it keeps its own
/// rows.
template <class T>
core::Result<void> choose_experts(const ExpertShape<T>& shape, const ExpertActivations<T>& layer,
                                  const StepHooks& hooks);

/// Overwrites d_logits (N, E): the gradients through the weights, from those by them (N, K), and those of the
/// router's losses. Of d_weights nothing is kept.
template <class T>
void choice_backward(const ExpertShape<T>& shape, const ExpertActivations<T>& layer, const StepHooks& hooks,
                     std::span<T> d_weights, std::span<T> d_logits);

}  // namespace troupe::apps::gpt
