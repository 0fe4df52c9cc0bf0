#pragma once

#include <cstddef>

#include "apps/gpt/cuda/cuda_block.hpp"
#include "apps/gpt/model/device_group.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

// B batch, L rows of a sequence that a rank has, T tokens of whole sequences, K heads with keys of their own,
// D head size, E the type of elements.

/// As ContextParallel, on a GPU. Rows have the pass's E.
struct CudaContextParallel {
  DeviceTensorGroup* group = nullptr;
  std::byte* key = nullptr;        ///< (B, T, K, D), of all members, by position
  std::byte* value = nullptr;      ///< as above
  std::byte* d_key = nullptr;      ///< (B, T, K, D): what this member adds to the gradients
  std::byte* d_value = nullptr;    ///< as above
  std::byte* exchanged = nullptr;  ///< (B, T, K, D), or logits, in the layout that members exchange
  float* logits = nullptr;         ///< (B, T, experts) of routers, of all members, by position
};

/// For parts of sequences that `members` share; the caller sets the group.
template <class E>
CudaContextParallel carve_cuda_context(ByteCarver& carver, std::size_t members, std::size_t rows,
                                       const ModelConfig& config);

/// With a group that shares sequences: rows (B, T, W) of all members, by position, from each member's own (B,
/// L, W).
template <class E>
core::Result<void> gather_rows(const CudaContext& context, std::size_t width, const E* own, E* all);

/// block.attention and block.log_sum from its queries, and from keys and values: the block's, or those of all
/// ranks if ranks share each sequence.
template <class E>
core::Result<void> attention_forward(const CudaContext& context, const CudaBlockActivations<E>& block);

/// From scratch.attention the gradients with respect to queries, keys and values; if ranks share each
/// sequence, those with respect to keys and values are the sums over the ranks.
template <class E>
core::Result<void> attention_backward(const CudaContext& context, const CudaBlockActivations<E>& block,
                                      const CudaGradientScratch<E>& scratch);

}  // namespace troupe::apps::gpt
