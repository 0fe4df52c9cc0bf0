#pragma once

#include <cstddef>

#include "core/result.hpp"

namespace troupe::apps::gpt {

enum class Write { overwrite, accumulate };

/// A row-major matrix in memory; the starts of consecutive rows are `stride` elements apart.
template <class T>
struct Matrix {
  const T* data;
  std::size_t stride;
  bool transposed = false;
};

/// c[m, n] (+)= scale * a[m, k] * b[k, n], where a and b denote the matrices after their transposition.
template <class T>
struct MatrixProduct {
  std::size_t m, n, k;
  Matrix<T> a, b;
  T* c;
  std::size_t c_stride;
  T scale = 1;
  Write write = Write::overwrite;
};

template <class T>
void multiply(const MatrixProduct<T>& product);

/// y[rows, out] = x[rows, in] * weight[out, in]^T. Strides are elements from one row to the next; 0: rows
/// follow each other.
struct LinearShape {
  std::size_t rows, in, out;
  std::size_t x_stride = 0, weight_stride = 0, y_stride = 0;

  std::size_t x_row() const { return x_stride == 0 ? in : x_stride; }
  std::size_t weight_row() const { return weight_stride == 0 ? in : weight_stride; }
  std::size_t y_row() const { return y_stride == 0 ? out : y_stride; }
};

template <class T>
void linear_forward(LinearShape shape, const T* x, const T* weight, T* y, Write write = Write::overwrite);

template <class T>
void linear_backward_input(LinearShape shape, const T* d_y, const T* weight, T* d_x,
                           Write write = Write::overwrite);

/// Always accumulates.
template <class T>
void linear_backward_weight(LinearShape shape, const T* d_y, const T* x, T* d_weight);

/// Before the first product. Parallelism comes from ranks: each computes on one thread, which also fixes the
/// order of every sum. Errc::out_of_memory: OpenBLAS would find no room for its buffer, and would look for it
/// for ever.
core::Result<void> prepare_blas();

}  // namespace troupe::apps::gpt
