#pragma once

#include "apps/gpt/cuda/cuda_block.hpp"
#include "apps/gpt/experts/expert_parameters.hpp"

namespace troupe::apps::gpt {

/// As expert_layer_forward() and expert_layer_backward() of the host, where all experts are on this rank: one
/// product per expert, sums in the order of choices. CudaContext::desk decides where tokens go.
template <class E>
core::Result<void> expert_layer_forward(const CudaContext& context, const ExpertLayerParameters& parameters,
                                        const CudaExpertActivations<E>& layer, const E* x,
                                        const CudaPass<E>& pass, E* output);

/// Overwrites d_x (N, C), from d_output (N, C).
template <class E>
core::Result<void> expert_layer_backward(const CudaContext& context, const ExpertLayerParameters& parameters,
                                         const CudaExpertActivations<E>& layer,
                                         const CudaExpertScratch<E>& scratch, const E* x, const E* d_output,
                                         const CudaPass<E>& pass, E* d_x);

}  // namespace troupe::apps::gpt
