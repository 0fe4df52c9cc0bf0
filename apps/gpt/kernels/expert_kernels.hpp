#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "apps/gpt/kernels/element.cuh"

namespace troupe::apps::gpt::cuda {

// N tokens, K choices per token, S slots, C width. As core/experts/dispatch.hpp, with the same order of sums,
// in fp32 with one rounding; only d_weights, sums over the width, are added in another order. The rules of
// apps/gpt/kernels/kernels.hpp apply.

/// How rows move between tokens and slots.
struct ExpertPlaces {
  std::size_t tokens, choices, slots, width;
  const std::int32_t* choice_of_slot;  ///< (S)
  const std::int32_t* slot_of_choice;  ///< (N, K), negative if a choice was dropped
};

/// slots (S, C) = the rows of their tokens.
template <class E>
cudaError_t gather_tokens(const ExpertPlaces& places, const E* tokens, E* slots, cudaStream_t stream);
/// tokens (N, C) += the rows of their slots, multiplied by weights (N, K) unless these are null.
template <class E>
cudaError_t combine(const ExpertPlaces& places, const float* weights, const E* slots, E* tokens,
                    cudaStream_t stream);

template <class E>
struct CombineGradients {
  const E* d_tokens;  ///< (N, C)
  E* d_slots;         ///< (S, C), overwritten
  float* d_weights;   ///< (N, K), overwritten
};
template <class E>
cudaError_t combine_backward(const ExpertPlaces& places, const float* weights, const E* slots,
                             const CombineGradients<E>& gradients, cudaStream_t stream);

/// From the gradients of a router's weights to those of its logits: as core::decision_backward(), whose sums
/// over a row are added in another order here. E experts.
struct RouterGradients {
  std::size_t rows, experts, choices;
  std::size_t parts;  ///< d_weights has this many of each choice, whose gradient is their sum
  bool is_sigmoid, is_softmax_of_chosen, is_normalised;
  float scale;          ///< as core::RouterOptions
  double balance;       ///< of core::balance_backward(), times E / (tokens^2 K); 0: there is no such loss
  double z;             ///< of core::z_loss_backward(); 0: there is no such loss
  const float* logits;  ///< (N, E)
  const std::int32_t* chosen;  ///< (N, K) experts
  const std::int32_t* counts;  ///< (E) choices of the microbatch
  float* d_weights;            ///< (N, K, parts), overwritten
};
template <class E>
cudaError_t router_backward(const RouterGradients& of, E* d_logits, cudaStream_t stream);

/// tokens (N, C) += sigmoid(gate) * output (N, C); gate (N) may be null, which stands for 1.
template <class E>
cudaError_t add_shared(std::size_t rows, std::size_t width, const E* gate, const E* output, E* tokens,
                       cudaStream_t stream);
/// d_output = sigmoid(gate) * d_tokens, and d_gate (N).
template <class E>
cudaError_t shared_backward(std::size_t rows, std::size_t width, const E* gate, const E* output,
                            const E* d_tokens, E* d_output, E* d_gate, cudaStream_t stream);

}  // namespace troupe::apps::gpt::cuda
