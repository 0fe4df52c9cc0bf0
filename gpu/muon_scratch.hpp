#pragma once

#include <algorithm>
#include <cstddef>

#include "gpu/buffer.hpp"
#include "gpu/optimizer_options.hpp"

namespace troupe::gpu {

/// Intermediate results between the kernels of a Muon step. S is the matrix's shorter side, L the longer.
struct MuonScratch {
  MuonScratch(MatrixShape shape, BufferView memory)
      : shorter(std::min(shape.rows, shape.columns)), longer(std::max(shape.rows, shape.columns)) {
    squares = reinterpret_cast<double*>(memory.data);
    x = reinterpret_cast<float*>(memory.data + square_bytes(shorter));
    other = x + shape.count();
    gram = other + shape.count();
    polynomial = gram + shorter * shorter;
  }

  static std::size_t bytes(MatrixShape shape) {
    const std::size_t shorter = std::min(shape.rows, shape.columns);
    return square_bytes(shorter) + 2 * (shape.count() + shorter * shorter) * sizeof(float);
  }

  std::size_t shorter;
  std::size_t longer;
  double* squares = nullptr;    ///< (S): squares of the rows of X
  float* x = nullptr;           ///< (S, L)
  float* other = nullptr;       ///< (L, S): X transposed; (S, L): the next X
  float* gram = nullptr;        ///< (S, S): X Xt
  float* polynomial = nullptr;  ///< (S, S)

 private:
  /// Aligned so that any vector may begin behind it.
  static std::size_t square_bytes(std::size_t shorter) {
    return (shorter * sizeof(double) + 255) / 256 * 256;
  }
};

}  // namespace troupe::gpu
