#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "apps/gpt/kernels/element.cuh"
#include "apps/gpt/layers/attention.hpp"
#include "apps/gpt/layers/matmul.hpp"
#include "apps/gpt/layers/pieces.hpp"

namespace troupe::apps::gpt::cuda {

// The layers of apps/gpt/layers on a GPU; those headers give the formulas. N rows, C width, V vocabulary, B
// batch, T length, L rows of a sequence that a rank has, H heads, K heads with keys of their own, D head
// size.
//
// E is the type of elements in memory, float or Bf16; sums, statistics and gradients of parameters are fp32.
// All pointers are device memory and must live until the stream has completed the call. Every sum has an
// order that depends only on the shapes, and nothing is added atomically: equal inputs give equal bits. The
// return value is the status of the launches.

/// Layer norm if `mean` is not null, otherwise rms norm. Backward and forward take the same pointers.
template <class E>
struct Norm {
  std::size_t rows, width;
  float epsilon;
  const E* x;       ///< (N, C)
  const E* weight;  ///< (C)
  const E* bias;    ///< (C), layer norm only; backward does not read it
  float* mean;      ///< (N), layer norm only; written by forward
  float* scale;     ///< (N), written by forward
};

template <class E>
cudaError_t norm_forward(const Norm<E>& norm, E* y, cudaStream_t stream);

/// Rows are summed in groups, whose size depends only on the width, and then the groups in order.
std::size_t norm_partials(std::size_t rows, std::size_t width);
/// From d_y (N, C); adds to the gradients of weight and bias.
template <class E>
struct NormGradients {
  const E* d_y;
  float* d_weight;  ///< (C)
  float* d_bias;    ///< (C), layer norm only
  float* partials;  ///< norm_partials() floats of scratch
};
/// Does not read the weight.
template <class E>
cudaError_t norm_backward_weight(const Norm<E>& norm, const NormGradients<E>& gradients, cudaStream_t stream);
/// Adds to d_x (N, C), from d_y (N, C), or overwrites it: then it may be d_y.
template <class E>
cudaError_t norm_backward_input(const Norm<E>& norm, const E* d_y, E* d_x, Write write, cudaStream_t stream);

/// y (N, C) += bias (C), in every row.
template <class E>
cudaError_t bias_forward(std::size_t rows, std::size_t width, const E* bias, E* y, cudaStream_t stream);
/// d_bias (C) += the sum of the rows of d_y (N, C), in the same order as for norms; `partials` are
/// norm_partials().
template <class E>
cudaError_t bias_backward(std::size_t rows, std::size_t width, const E* d_y, float* partials, float* d_bias,
                          cudaStream_t stream);

/// A token or target in another rank's part of the vocabulary.
inline constexpr std::int32_t kElsewhere = -2;

/// Rows of tokens in other parts are zero.
template <class E>
cudaError_t embedding_forward(const std::int32_t* tokens, std::size_t rows, std::size_t width, const E* table,
                              E* x, cudaStream_t stream);

/// Which rows of d_x are added to which row of the table, prepared by the host: rows of one token are
/// adjacent in `order`, cut into segments, each of which becomes a partial sum.
struct EmbeddingOrder {
  const std::int32_t* order;          ///< rows whose token is here, sorted by it; equal ones stay in order
  const std::int32_t* segments;       ///< the beginnings of segments in `order`, and the end of the last
  const std::int32_t* tokens;         ///< the distinct tokens
  const std::int32_t* first_segment;  ///< by token, and the end of the last
  std::size_t segment_count, token_count;
};
inline constexpr std::size_t kSegmentRows = 64;  ///< at most
/// `partials` has room for (segment_count, C).
template <class E>
cudaError_t embedding_backward(const EmbeddingOrder& order, std::size_t width, const E* d_x, float* partials,
                               float* d_table, cudaStream_t stream);

/// Rotates queries (B, T, H, D) and keys (B, T, K, D) in place; direction -1 rotates back. cosine and sine
/// are (context, D/2).
template <class E>
struct Turn {
  std::size_t rows, length, heads, key_heads, half;
  const float* cosine;
  const float* sine;
  float direction;
  E* query;
  E* key;  ///< not read if key_heads is 0
};
template <class E>
cudaError_t rotary(const Turn<E>& turn, cudaStream_t stream);

template <class E>
cudaError_t swiglu_forward(std::size_t count, const E* gate, const E* up, E* y, cudaStream_t stream);
template <class E>
cudaError_t swiglu_backward(std::size_t count, const E* gate, const E* up, const E* d_y, E* d_gate, E* d_up,
                            cudaStream_t stream);
template <class E>
cudaError_t gelu_forward(std::size_t count, const E* x, E* y, cudaStream_t stream);
template <class E>
cudaError_t gelu_backward(std::size_t count, const E* x, const E* d_y, E* d_x, cudaStream_t stream);

/// Per row: log of the sum of exponentials, and the loss in nats; then their sum over `divisor`, in fp64.
template <class E>
struct CrossEntropy {
  std::size_t rows, vocabulary;
  const std::int32_t* targets;  ///< (N), kNoTarget for a row that is not learned; or kElsewhere
  E* logits;                    ///< (N, V); backward turns them into the gradient of what forward returns
  float* log_sum;               ///< (N), written by forward for the learned rows
  float* losses;                ///< (N), written by forward
  std::size_t divisor;          ///< at least 1; for a mean the number of rows that have a target
  float scale = 1;              ///< multiplies the gradient
};
template <class E>
cudaError_t cross_entropy_forward(const CrossEntropy<E>& entropy, double* loss, cudaStream_t stream);
template <class E>
cudaError_t cross_entropy_backward(const CrossEntropy<E>& entropy, cudaStream_t stream);

/// The forward for ranks that each have a part of the vocabulary, all parts of the same size: in three steps,
/// with a maximum over the ranks after the first and a sum after the second. Backward is the one above.
struct VocabularySums {
  float* most;  ///< (N), the greatest logit; written by the first step
  float* sums;  ///< (2, N), of exponentials relative to it, and the target's logit minus it; by the second
};
template <class E>
cudaError_t vocabulary_greatest(const CrossEntropy<E>& entropy, const VocabularySums& to,
                                cudaStream_t stream);
template <class E>
cudaError_t vocabulary_sums(const CrossEntropy<E>& entropy, const VocabularySums& to, cudaStream_t stream);
template <class E>
cudaError_t vocabulary_losses(const CrossEntropy<E>& entropy, const VocabularySums& from, double* loss,
                              cudaStream_t stream);

/// Widens `count` elements, for reports and for the host.
template <class E>
cudaError_t widen(std::size_t count, const E* from, float* to, cudaStream_t stream);

inline constexpr std::size_t kMostHeadSize = 128;

template <class E>
cudaError_t rows_by_position(const PieceRows& rows, const E* by_member, E* by_position, cudaStream_t stream);
template <class E>
cudaError_t rows_by_member(const PieceRows& rows, const E* by_position, E* by_member, cudaStream_t stream);

/// Causal attention that never holds a (T, T) matrix: for each tile of queries it iterates over tiles of
/// keys, and rescales the softmax when larger scores appear. FlashAttention-2 (Dao, 2023). D is even and at
/// most 128.
template <class E>
struct Attention {
  std::size_t batch, length, heads, head_size;
  std::size_t key_heads;  ///< divides heads: head h reads the keys and values of h / (H / K)
  const E* query;         ///< (B, L, H, D), rotated
  const E* key;           ///< (B, T, K, D), rotated
  const E* value;         ///< (B, T, K, D)
  E* y;                   ///< (B, L, H, D), written by forward
  float* log_sum;  ///< (B, H, L), written by forward: log2 of the sum of exponentials of a row's scores
  SequenceHalves rows{};
};
template <class E>
cudaError_t attention_forward(const Attention<E>& attention, cudaStream_t stream);

template <class E>
struct AttentionGradients {
  const E* d_y;  ///< (B, L, H, D)
  E* query;      ///< (B, L, H, D), overwritten
  E* key;        ///< (B, T, K, D), as above: the contribution of the L rows
  E* value;      ///< (B, T, K, D), as above
  float* delta;  ///< (B, H, L) of scratch
};
/// Keys and values get their gradients in one pass over tiles of keys, queries in another over tiles of
/// queries. For a key that several heads read, the gradients are summed from the first of these heads on, in
/// fp32, and rounded once.
template <class E>
cudaError_t attention_backward(const Attention<E>& attention, const AttentionGradients<E>& gradients,
                               cudaStream_t stream);

}  // namespace troupe::apps::gpt::cuda
