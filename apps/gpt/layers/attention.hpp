#pragma once

#include <cstddef>

namespace troupe::apps::gpt {

// B batch, T length, L rows of a sequence that a rank has, H heads, K heads with keys of their own, D head
// size.

struct AttentionShape {
  std::size_t batch, length, heads, head_size;
  std::size_t key_heads = heads;  ///< divides heads: head h reads the keys and values of h / (H / K)
};

/// Which positions of sequences of T the L rows of a rank are, if it shares each sequence with others: the
/// first half starts at position `lower`, the second at `upper`, which comes after. T 0: the rank has all of
/// them, and L is T.
struct SequenceHalves {
  std::size_t positions = 0;  ///< T
  std::size_t lower = 0, upper = 0;
};

/// What causal attention reads, and what forward saves for backward. E is the type of elements, S that of
/// sums.
template <class E, class S = E>
struct Attention {
  AttentionShape shape;  ///< with L rows
  const E* query;        ///< (B, L, H, D), rotated
  const E* key;          ///< (B, T, K, D), rotated
  const E* value;        ///< (B, T, K, D)
  S* probabilities;      ///< (B, H, L, T): the row of position t holds the weights of 0..t, followed by zeros
  SequenceHalves rows{};
};

template <class E, class S = E>
struct AttentionGradients {
  E* query;    ///< (B, L, H, D), overwritten
  E* key;      ///< (B, T, K, D), as above: the contribution of the L rows
  E* value;    ///< (B, T, K, D), as above
  S* scratch;  ///< (L, T)
};

/// y (B, L, H, D) = softmax(query * key^T / sqrt(D)) * value, where each position sees itself and those
/// before it.
template <class T>
void attention_forward(const Attention<T>& attention, T* y);

template <class T>
void attention_backward(const Attention<T>& attention, const T* d_y, const AttentionGradients<T>& gradients);

}  // namespace troupe::apps::gpt
