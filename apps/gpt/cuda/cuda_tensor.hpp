#pragma once

#include <cstddef>
#include <cstdint>

#include "apps/gpt/cuda/cuda_block.hpp"
#include "apps/gpt/kernels/kernels.hpp"
#include "apps/gpt/model/device_group.hpp"
#include "core/result.hpp"
#include "gpu/buffer.hpp"

namespace troupe::apps::gpt {

// N rows of a pass, C width, E the type of elements.

/// As TensorParallel, on a GPU. Rows have the pass's E.
struct CudaTensorParallel {
  DeviceTensorGroup* group = nullptr;
  bool sequence = false;
  std::byte* gathered = nullptr;  ///< (N, C), with sequence parallelism only
  std::byte* partial = nullptr;   ///< (N, C): this rank's contribution to a sum
  std::byte* own = nullptr;       ///< (the most rows of a member, C), with sequence parallelism only
  std::byte* again = nullptr;     ///< (N, C): besides `gathered`, with sequence parallelism and experts only
  cuda::VocabularySums vocabulary{};
  gpu::BufferView scratch;  ///< of sums
};

/// As carve_tensor(); the caller sets the group and `partial`.
template <class E>
CudaTensorParallel carve_cuda_tensor(ByteCarver& carver, std::size_t members, bool sequence, std::size_t rows,
                                     const ModelConfig& config);

/// This rank's rows of the residual stream, in the pass.
std::size_t own_rows(const CudaContext& context);

/// As all_rows() and summed_rows(), for the pass's rows.
template <class E>
core::Result<const E*> all_rows(const CudaContext& context, const E* own);
template <class E>
core::Result<const E*> summed_rows(const CudaContext& context, E* partial);

/// residual += this rank's rows of the sum of all members' `partial` (N, C), which is overwritten. With a
/// group.
template <class E>
core::Result<void> add_summed_rows(const CudaContext& context, E* partial, E* residual);

/// residual += x * weight^T for `in` columns of x (N, in), summed over the ranks that share the product by
/// rows, each with one part of x. Without a group this is one product.
template <class E>
core::Result<void> project_into_residual(const CudaContext& context, const CudaPass<E>& pass, std::size_t in,
                                         std::size_t weight, const E* x, E* residual);

/// With a group: x (own rows, C) = the tokens' rows from all parts of the table; `table` is this rank's part.
template <class E>
core::Result<void> vocabulary_embedding_forward(const CudaContext& context, const std::int32_t* tokens,
                                                const E* table, E* x);
/// With a group: as cuda::cross_entropy_forward(), over all parts of the vocabulary.
template <class E>
core::Result<void> vocabulary_cross_entropy_forward(const CudaContext& context,
                                                    const cuda::CrossEntropy<E>& entropy, double* loss);

/// With a group: gathers the logits of all parts of the vocabulary in `all`; `own` are this rank's.
core::Result<float*> all_next_logits(const CudaContext& context, const float* own, float* all);

}  // namespace troupe::apps::gpt
