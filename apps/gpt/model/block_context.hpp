#pragma once

#include "apps/gpt/model/activations.hpp"
#include "apps/gpt/model/config.hpp"

namespace troupe::apps::gpt {

template <class X>
struct ContextParallel;
template <class X>
struct TensorParallel;

/// What a block computes with besides parameters and activations. The model is written once, for an engine X
/// that does its arithmetic: HostEngine (apps/gpt/model/host_engine.hpp), which is done when a call returns,
/// or CudaEngine (apps/gpt/cuda/cuda_engine.hpp), which enqueues. Only engines distinguish devices.
template <class X>
struct BlockContext {
  const ModelConfig& config;
  BatchShape shape;  ///< of this pass; at most what the activations were carved for
  const X& engine;
  /// Slices of each layer that this rank computes, one product after another.
  std::size_t slices = 1;
  /// Set if the block is computed in slices, by a group of ranks or by one.
  const TensorParallel<X>* tensor = nullptr;
  /// Set if a group of ranks shares the sequences.
  const ContextParallel<X>* sequences = nullptr;
  /// On a GPU, in models with experts: where the host decides.
  typename X::Desk* desk = nullptr;
};

}  // namespace troupe::apps::gpt
