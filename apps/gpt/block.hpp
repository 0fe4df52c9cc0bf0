#pragma once

#include "apps/gpt/activations.hpp"
#include "apps/gpt/context/context_attention.hpp"
#include "apps/gpt/layers/rotary.hpp"
#include "apps/gpt/parameters.hpp"
#include "apps/gpt/pass.hpp"
#include "apps/gpt/tensor/rows.hpp"

namespace troupe::apps::gpt {

/// What a block computes with besides parameters and activations.
template <class T>
struct BlockContext {
  const ModelConfig& config;
  BatchShape shape;  ///< what this pass uses; at most what the activations were carved for
  const Rotary<T>& rotary;
  /// Where a group of ranks shares the block: what is then of the residual stream has this rank's own rows.
  const TensorParallel<T>* tensor = nullptr;
  /// Where a group of ranks shares the sequences.
  const ContextParallel<T>* across = nullptr;
};

/// output (N, C) = the residual stream after the block, from block.input.
template <class T>
core::Result<void> block_forward(const BlockContext<T>& context, const BlockParameters& parameters,
                                 const BlockActivations<T>& block, const Pass<T>& pass, T* output);

/// What block_forward() leaves in the block for backward, anew from block.input, and nothing else.
template <class T>
core::Result<void> block_activations(const BlockContext<T>& context, const BlockParameters& parameters,
                                     const BlockActivations<T>& block, const Pass<T>& pass);

/// Turns scratch.residual from the gradient by the block's output into the gradient by its input.
template <class T>
core::Result<void> block_backward(const BlockContext<T>& context, const BlockParameters& parameters,
                                  const BlockActivations<T>& block, const GradientScratch<T>& scratch,
                                  const Pass<T>& pass);

/// The norm which the configuration names, from x to norm.output.
template <class T>
core::Result<void> norm_forward(const BlockContext<T>& context, const NormParameters& parameters, const T* x,
                                const NormActivations<T>& norm, const Pass<T>& pass);

/// Adds to d_x.
template <class T>
core::Result<void> norm_backward(const BlockContext<T>& context, const NormParameters& parameters, const T* x,
                                 const NormActivations<T>& norm, const Pass<T>& pass, const T* d_y, T* d_x);

}  // namespace troupe::apps::gpt
