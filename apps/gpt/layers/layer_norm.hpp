#pragma once

#include <cstddef>

#include "apps/gpt/layers/matmul.hpp"

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

/// Adds to d_x (N, C), or overwrites it: then it may be d_y.
template <class T>
void layer_norm_backward_input(const LayerNorm<T>& norm, const T* d_y, T* d_x, Write write);
/// Adds to d_weight (C) and d_bias (C). Does not read the weight.
template <class T>
void layer_norm_backward_weight(const LayerNorm<T>& norm, const T* d_y, T* d_weight, T* d_bias);

}  // namespace troupe::apps::gpt
