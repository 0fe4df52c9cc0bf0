#pragma once

#include <cstddef>

#include "apps/gpt/experts/expert_activations.hpp"
#include "apps/gpt/experts/expert_config.hpp"
#include "apps/gpt/experts/expert_parameters.hpp"
#include "apps/gpt/pass.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// One product per expert with the rows of one pass alone, which are one lane's, and for each row a sum in
/// the order of its choices: so the bits do not depend on where experts are, or on other lanes. Where experts
/// are spread over ranks (StepHooks::peers), rows go to those that have their experts and come back; each
/// computes a product for every rank the rows came from.
struct ExpertShape {
  const ExpertConfig& config;
  std::size_t rows = 0;   ///< N
  std::size_t width = 0;  ///< C
  /// Backward adds the gradients of the router's losses. Of ranks that share the layer, whose gradients are
  /// summed, one does.
  bool adds_losses = true;
};

/// output (N, C) += what the experts that each row of x (N, C) chose make of it, weighed, and then the shared
/// one.
template <class T>
core::Result<void> expert_layer_forward(const ExpertShape& shape, const ExpertLayerParameters& parameters,
                                        const ExpertActivations<T>& layer, const T* x, const Pass<T>& pass,
                                        T* output);

template <class T>
struct ExpertGradient {
  const T* x;         ///< (N, C) as in forward
  const T* d_output;  ///< (N, C)
};

/// Overwrites d_x (N, C). Every expert's gradient is complete then, also of those without rows.
template <class T>
core::Result<void> expert_layer_backward(const ExpertShape& shape, const ExpertLayerParameters& parameters,
                                         const ExpertActivations<T>& layer, const ExpertScratch<T>& scratch,
                                         const ExpertGradient<T>& gradient, const Pass<T>& pass, T* d_x);

}  // namespace troupe::apps::gpt
