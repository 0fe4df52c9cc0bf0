#pragma once

#include <cstddef>

#include "apps/gpt/cuda/cuda_block.hpp"
#include "apps/gpt/tensor/device_group.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

// B batch, L rows of a sequence that a rank has, T tokens of whole sequences, K heads with keys of their own,
// D head size, E the type of elements.

/// As ContextParallel, on a GPU. Rows are of the pass's E.
struct CudaContextParallel {
  DeviceTensorGroup* group = nullptr;
  std::byte* key = nullptr;        ///< (B, T, K, D), of all members, by position
  std::byte* value = nullptr;      ///< likewise
  std::byte* d_key = nullptr;      ///< (B, T, K, D): what this member adds to the gradients
  std::byte* d_value = nullptr;    ///< likewise
  std::byte* exchanged = nullptr;  ///< (B, T, K, D), or logits, as members hand them over
  float* logits = nullptr;         ///< (B, T, experts) of routers, of all members, by position
};

/// For parts of sequences that `members` share; the group is for the caller to give.
template <class E>
CudaContextParallel carve_cuda_context(ByteCarver& carver, std::size_t members, std::size_t rows,
                                       const ModelConfig& config);

/// With a group that shares sequences: rows (B, T, W) of all members, by position, from each one's own
/// (B, L, W).
template <class E>
core::Result<void> gather_rows(const CudaContext& context, std::size_t width, const E* own, E* all);

/// block.attention and block.log_sum from its queries, and from keys and values: the block's, or where ranks
/// share each sequence those of all of them.
template <class E>
core::Result<void> attention_forward(const CudaContext& context, const CudaBlockActivations<E>& block);

/// Of scratch.attention the gradients by queries, keys and values; where ranks share each sequence those by
/// keys and values are the sums over them.
template <class E>
core::Result<void> attention_backward(const CudaContext& context, const CudaBlockActivations<E>& block,
                                      const CudaGradientScratch<E>& scratch);

}  // namespace troupe::apps::gpt
