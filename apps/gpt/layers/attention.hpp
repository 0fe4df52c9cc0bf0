#pragma once

#include <cstddef>

namespace troupe::apps::gpt {

// B batch, T length, H heads, K heads with keys of their own, D head size.

struct AttentionShape {
  std::size_t batch, length, heads, head_size;
  std::size_t key_heads = heads;  ///< divides heads: head h reads the keys and values of h / (H / K)
};

/// What causal attention reads, and what forward saves for backward.
template <class T>
struct Attention {
  AttentionShape shape;
  const T* query;    ///< (B, T, H, D), rotated
  const T* key;      ///< (B, T, K, D), rotated
  const T* value;    ///< (B, T, K, D)
  T* probabilities;  ///< (B, H, T, T): row t holds the weights of positions 0..t, followed by zeros
};

template <class T>
struct AttentionGradients {
  T* query;    ///< (B, T, H, D), overwritten
  T* key;      ///< (B, T, K, D), as above
  T* value;    ///< (B, T, K, D), as above
  T* scratch;  ///< (T, T)
};

/// y (B, T, H, D) = softmax(query * key^T / sqrt(D)) * value, where each position sees itself and those
/// before it.
template <class T>
void attention_forward(const Attention<T>& attention, T* y);

template <class T>
void attention_backward(const Attention<T>& attention, const T* d_y, const AttentionGradients<T>& gradients);

}  // namespace troupe::apps::gpt
