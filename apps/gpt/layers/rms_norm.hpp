#pragma once

#include <cstddef>

#include "apps/gpt/layers/matmul.hpp"

namespace troupe::apps::gpt {

// N rows, C width.

/// y = x * scale * weight with scale = 1 / sqrt(mean(x^2) + epsilon) per row.
template <class T>
struct RmsNorm {
  std::size_t rows, width;
  T epsilon;
  const T* x;       ///< (N, C)
  const T* weight;  ///< (C)
  T* scale;         ///< (N), written by forward, read by backward
};

/// y is (N, C).
template <class T>
void rms_norm_forward(const RmsNorm<T>& norm, T* y);

/// Adds to d_x (N, C), or overwrites it: then it may be d_y.
template <class T>
void rms_norm_backward_input(const RmsNorm<T>& norm, const T* d_y, T* d_x, Write write);
/// Adds to d_weight (C). Does not read the weight.
template <class T>
void rms_norm_backward_weight(const RmsNorm<T>& norm, const T* d_y, T* d_weight);

}  // namespace troupe::apps::gpt
