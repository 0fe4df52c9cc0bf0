#pragma once

#include "apps/gpt/cuda/cuda_block.hpp"
#include "apps/gpt/model/expert_parameters.hpp"

namespace troupe::apps::gpt {

/// As expert_layer_forward() and expert_layer_backward() on the host, with the same order of sums.
/// CudaContext::desk decides where tokens go. If experts are distributed over ranks (StepHooks::peers), whole
/// rows of slots are exchanged, including a rank's own: NCCL does not take lists of rows.
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
