#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>
#include <string_view>

#include "apps/gpt/cuda/cuda_activations.hpp"
#include "apps/gpt/kernels/blas.hpp"
#include "apps/gpt/model/parameters.hpp"
#include "apps/gpt/model/pass.hpp"
#include "core/result.hpp"
#include "gpu/stream.hpp"

namespace troupe::apps::gpt {

template <class E>
class CudaWeightWork;
class ExpertDesk;
struct CudaContextParallel;
struct CudaTensorParallel;

/// As Pass, with parameters in E and gradients in fp32.
template <class E>
struct CudaPass {
  std::span<const std::byte* const> parameters;
  std::span<float* const> gradients;
  const StepHooks& hooks;
  CudaWeightWork<E>* later = nullptr;  ///< apps/gpt/cuda/cuda_weight_work.hpp

  core::Result<const E*> use(std::size_t parameter) const {
    if (hooks.before_use) {
      if (auto readable = hooks.before_use(parameter); !readable) return tl::unexpected(readable.error());
    }
    return reinterpret_cast<const E*>(parameters[parameter]);
  }

  float* gradient(std::size_t parameter) const { return gradients[parameter]; }

  void ready(std::size_t parameter) const {
    if (hooks.gradient_ready) hooks.gradient_ready(parameter);
  }
};

/// As BlockContext: what blocks compute with besides parameters and activations.
struct CudaContext {
  const ModelConfig& config;
  BatchShape shape;  ///< of this pass; at most what the activations were carved for
  const float* cosine;
  const float* sine;
  Blas& blas;
  gpu::StreamView stream;
  ExpertDesk* desk = nullptr;                      ///< set for a model with experts
  const CudaTensorParallel* tensor = nullptr;      ///< null if ranks do not share the layers
  const CudaContextParallel* sequences = nullptr;  ///< null if ranks do not share the sequences

  /// Enqueues kernels as one task.
  template <class Launch>
  void run(std::string_view label, Launch launch) const {
    stream->run_native(
        label, [&](void* native) { return static_cast<int>(launch(static_cast<cudaStream_t>(native))); });
  }
};

/// output (N, C) = the residual stream after the block, from block.input.
template <class E>
core::Result<void> block_forward(const CudaContext& context, const BlockParameters& parameters,
                                 const CudaBlockActivations<E>& block, const CudaPass<E>& pass, E* output);

/// As block_activations() on the host.
template <class E>
core::Result<void> block_activations(const CudaContext& context, const BlockParameters& parameters,
                                     const CudaBlockActivations<E>& block, const CudaPass<E>& pass);

/// Turns scratch.residual from the gradient with respect to the block's output into that with respect to its
/// input. What the pass defers has copies of the context, and reads the activations.
template <class E>
core::Result<void> block_backward(const CudaContext& context, const BlockParameters& parameters,
                                  const CudaBlockActivations<E>& block, const CudaGradientScratch<E>& scratch,
                                  const CudaPass<E>& pass);

template <class E>
core::Result<void> norm_forward(const CudaContext& context, const NormParameters& parameters, const E* x,
                                const CudaNormActivations<E>& norm, const CudaPass<E>& pass);

/// Adds to scratch.residual, from d_y (N, C).
template <class E>
core::Result<void> norm_backward(const CudaContext& context, const NormParameters& parameters, const E* x,
                                 const CudaNormActivations<E>& norm, const E* d_y,
                                 const CudaGradientScratch<E>& scratch, const CudaPass<E>& pass);

}  // namespace troupe::apps::gpt
