#pragma once

#include "apps/gpt/model/expert_activations.hpp"
#include "apps/gpt/model/expert_parameters.hpp"
#include "apps/gpt/model/expert_shape.hpp"
#include "apps/gpt/model/pass.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// output (N, C) += what the experts that each row of x (N, C) chose make of it, weighed, and then the shared
/// one: one product per expert with the rows of one pass alone, which are one lane's, and for each row a sum
/// in the order of its choices: so the bits do not depend on where experts are, or on other lanes. Where
/// experts are distributed over ranks (StepHooks::peers), rows go to those that have their experts and come
/// back; each computes a product for every rank the rows came from.
template <class T>
core::Result<void> expert_layer_forward(const ExpertShape<T>& shape, const ExpertLayerParameters& parameters,
                                        const ExpertActivations<T>& layer, const T* x, const Pass<T>& pass,
                                        T* output);

template <class T>
struct ExpertGradient {
  const T* x;         ///< (N, C) as in forward
  const T* d_output;  ///< (N, C)
};

/// Overwrites d_x (N, C). Every expert's gradient is complete then, also of those without rows.
template <class T>
core::Result<void> expert_layer_backward(const ExpertShape<T>& shape, const ExpertLayerParameters& parameters,
                                         const ExpertActivations<T>& layer, const ExpertScratch<T>& scratch,
                                         const ExpertGradient<T>& gradient, const Pass<T>& pass, T* d_x);

}  // namespace troupe::apps::gpt
