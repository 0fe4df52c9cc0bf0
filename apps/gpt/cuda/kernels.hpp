#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "apps/gpt/cuda/element.cuh"
#include "apps/gpt/layers/matmul.hpp"

namespace troupe::apps::gpt::cuda {

// The layers of apps/gpt/layers on a GPU; those headers give the formulas. N rows, C width, V vocabulary, B
// batch, T length, L rows of a sequence that a rank has, H heads, K heads with keys of their own, D head
// size.
//
// E is the type of elements in memory, float or Bf16; sums, statistics and gradients of parameters are fp32.
// All pointers are memory of the device and must live until the stream has passed the call. Every sum has an
// order that depends on the shapes alone, and nothing is added atomically: equal inputs give equal bits.
// What is returned is the status of the launches.

/// Layer norm where `mean` is not null, else rms norm. The pointers of backward and forward are the same.
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

/// Rows are summed in groups, whose size depends on the width alone, and the groups in order.
std::size_t norm_partials(std::size_t rows, std::size_t width);
/// From d_y (N, C), which it adds to the gradients of weight and bias.
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
/// d_x (N, C), from d_y (N, C), is added to, or else overwritten: then it may be d_y.
template <class E>
cudaError_t norm_backward_input(const Norm<E>& norm, const E* d_y, E* d_x, Write write, cudaStream_t stream);

/// y (N, C) += bias (C), in every row.
template <class E>
cudaError_t bias_forward(std::size_t rows, std::size_t width, const E* bias, E* y, cudaStream_t stream);
/// d_bias (C) += the sum of the rows of d_y (N, C), as those of norms are summed; `partials` are
/// norm_partials().
template <class E>
cudaError_t bias_backward(std::size_t rows, std::size_t width, const E* d_y, float* partials, float* d_bias,
                          cudaStream_t stream);

/// A token or target of the vocabulary's parts that other ranks have.
inline constexpr std::int32_t kElsewhere = -2;

/// Rows of tokens that are elsewhere are zero.
template <class E>
cudaError_t embedding_forward(const std::int32_t* tokens, std::size_t rows, std::size_t width, const E* table,
                              E* x, cudaStream_t stream);

/// Which rows of d_x are added to which row of the table, by the host: rows of one token are neighbours in
/// `order`, cut into segments, each of which becomes a partial sum.
struct EmbeddingOrder {
  const std::int32_t* order;          ///< rows whose token is here, sorted by it; equal ones stay in order
  const std::int32_t* segments;       ///< begins of segments in `order`, and the end of the last
  const std::int32_t* tokens;         ///< the different tokens
  const std::int32_t* first_segment;  ///< of each token, and the end of the last
  std::size_t segment_count, token_count;
};
inline constexpr std::size_t kSegmentRows = 64;  ///< at most
/// `partials` has room for (segment_count, C).
template <class E>
cudaError_t embedding_backward(const EmbeddingOrder& order, std::size_t width, const E* d_x, float* partials,
                               float* d_table, cudaStream_t stream);

/// Turns queries (B, T, H, D) and keys (B, T, K, D) in place; direction -1 turns back. cosine and sine are
/// (context, D/2).
template <class E>
struct Turn {
  std::size_t rows, length, heads, key_heads, half;
  const float* cosine;
  const float* sine;
  float direction;
  E* query;
  E* key;  ///< not read where key_heads is 0
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

/// Per row: log of the sum of exponentials, and the loss in nats; then the mean of the rows that are learned,
/// summed in fp64.
template <class E>
struct CrossEntropy {
  std::size_t rows, vocabulary;
  const std::int32_t* targets;  ///< (N), kNoTarget where a row is not learned; or kElsewhere
  E* logits;                    ///< (N, V); backward turns them into the gradient of the mean
  float* log_sum;               ///< (N), written by forward of the rows that are learned
  float* losses;                ///< (N), written by forward
  std::size_t learned;          ///< rows that have a target
  float scale = 1;              ///< multiplies the gradient
};
template <class E>
cudaError_t cross_entropy_forward(const CrossEntropy<E>& entropy, double* mean_loss, cudaStream_t stream);
template <class E>
cudaError_t cross_entropy_backward(const CrossEntropy<E>& entropy, cudaStream_t stream);

/// The forward of ranks which have a part of the vocabulary each, all of the same size: in three steps, with
/// a maximum over the ranks after the first one and a sum after the second. Backward is the above.
struct VocabularySums {
  float* most;  ///< (N), the greatest logit; written by the first
  float* sums;  ///< (2, N), of exponentials below it, and the target's logit less it; written by the second
};
template <class E>
cudaError_t vocabulary_greatest(const CrossEntropy<E>& entropy, const VocabularySums& to,
                                cudaStream_t stream);
template <class E>
cudaError_t vocabulary_sums(const CrossEntropy<E>& entropy, const VocabularySums& to, cudaStream_t stream);
template <class E>
cudaError_t vocabulary_losses(const CrossEntropy<E>& entropy, const VocabularySums& from, double* mean_loss,
                              cudaStream_t stream);

/// Widens `count` elements, for what people and the host read.
template <class E>
cudaError_t widen(std::size_t count, const E* from, float* to, cudaStream_t stream);

inline constexpr std::size_t kMostHeadSize = 128;

/// Which positions of sequences of T the L rows of a rank are that shares each sequence with others: the
/// first half stands from position `lower` on, the second from `upper` on, which lies behind. T 0: the rank
/// has all of them, and L is T.
struct SequenceHalves {
  std::size_t positions = 0;  ///< T
  std::size_t lower = 0, upper = 0;
};

/// Rows of keys or values (N, B, L, C) as N members of a group have them, two pieces of P = L/2 positions of
/// each sequence: member i has pieces i and 2N - 1 - i. By position they are (B, T, C), where T = N L.
struct PieceRows {
  std::size_t members, batch, length, width;  ///< N, B, L, C
};
template <class E>
cudaError_t rows_by_position(const PieceRows& rows, const E* by_member, E* by_position, cudaStream_t stream);
template <class E>
cudaError_t rows_by_member(const PieceRows& rows, const E* by_position, E* by_member, cudaStream_t stream);

/// Causal attention which never holds a (T, T) matrix: tiles of keys pass by tiles of queries, and the
/// softmax is corrected as larger scores come. FlashAttention-2 (Dao, 2023). D is even and at most 128.
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
  E* key;        ///< (B, T, K, D), likewise: what the L rows add
  E* value;      ///< (B, T, K, D), likewise
  float* delta;  ///< (B, H, L) of scratch
};
/// Keys and values get their gradients in one pass over tiles of keys, queries in another over tiles of
/// queries. Those of a key that several heads read are summed from the first of these heads on, in fp32, and
/// rounded once.
template <class E>
cudaError_t attention_backward(const Attention<E>& attention, const AttentionGradients<E>& gradients,
                               cudaStream_t stream);

}  // namespace troupe::apps::gpt::cuda
