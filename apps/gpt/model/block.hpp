#pragma once

#include "apps/gpt/layers/rotary.hpp"
#include "apps/gpt/model/activations.hpp"
#include "apps/gpt/model/context_attention.hpp"
#include "apps/gpt/model/parameters.hpp"
#include "apps/gpt/model/pass.hpp"
#include "apps/gpt/model/rows.hpp"

namespace troupe::apps::gpt {

/// What a block computes with besides parameters and activations.
template <class T>
struct BlockContext {
  const ModelConfig& config;
  BatchShape shape;  ///< of this pass; at most what the activations were carved for
  const Rotary<T>& rotary;
  /// Set if a group of ranks shares the block: then tensors of the residual stream have only this rank's
  /// rows.
  const TensorParallel<T>* tensor = nullptr;
  /// Set if a group of ranks shares the sequences.
  const ContextParallel<T>* across = nullptr;
};

/// output (N, C) = the residual stream after the block, from block.input.
template <class T>
core::Result<void> block_forward(const BlockContext<T>& context, const BlockParameters& parameters,
                                 const BlockActivations<T>& block, const Pass<T>& pass, T* output);

/// Recomputes from block.input what block_forward() leaves in the block for backward, and nothing else.
template <class T>
core::Result<void> block_activations(const BlockContext<T>& context, const BlockParameters& parameters,
                                     const BlockActivations<T>& block, const Pass<T>& pass);

/// Turns scratch.residual from the gradient with respect to the block's output into that with respect to its
/// input.
template <class T>
core::Result<void> block_backward(const BlockContext<T>& context, const BlockParameters& parameters,
                                  const BlockActivations<T>& block, const GradientScratch<T>& scratch,
                                  const Pass<T>& pass);

/// The norm that the configuration names, from x to norm.output.
template <class T>
core::Result<void> norm_forward(const BlockContext<T>& context, const NormParameters& parameters, const T* x,
                                const NormActivations<T>& norm, const Pass<T>& pass);

/// Adds to d_x.
template <class T>
core::Result<void> norm_backward(const BlockContext<T>& context, const NormParameters& parameters, const T* x,
                                 const NormActivations<T>& norm, const Pass<T>& pass, const T* d_y, T* d_x);

}  // namespace troupe::apps::gpt
