#pragma once

#include <cstddef>

namespace troupe::apps::gpt {

// N rows, C width.

/// y = (x - mean) * scale * weight + bias with scale = 1 / sqrt(variance(x) + epsilon) per row.
template <class T>
struct LayerNorm {
  std::size_t rows, width;
  T epsilon;
  const T* x;       ///< (N, C)
  const T* weight;  ///< (C)
  const T* bias;    ///< (C); backward does not read it
  T* mean;          ///< (N), written by forward, read by backward
  T* scale;         ///< (N), as above
};

/// y is (N, C).
template <class T>
void layer_norm_forward(const LayerNorm<T>& norm, T* y);

/// Adds to d_x (N, C), d_weight (C) and d_bias (C).
template <class T>
void layer_norm_backward(const LayerNorm<T>& norm, const T* d_y, T* d_x, T* d_weight, T* d_bias);

}  // namespace troupe::apps::gpt
