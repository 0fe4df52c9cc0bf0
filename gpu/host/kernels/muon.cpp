#include <algorithm>
#include <cstring>
#include <utility>

#include "gpu/host/kernels/blocks.hpp"
#include "gpu/host/kernels/instructions.hpp"
#include "gpu/kernel_checks.hpp"
#include "gpu/kernels.hpp"
#include "gpu/muon_scratch.hpp"
#include "gpu/optimizer_arithmetic.hpp"

namespace troupe::gpu {
namespace {

/// out (m, n) = base_factor * base (m, n) + factor * a (m, k) b (k, n), or without a base a b, whatever the
/// factor. Nothing overlaps.
struct Product {
  std::size_t m = 0, k = 0, n = 0;
  const float* a = nullptr;
  const float* b = nullptr;
  float* out = nullptr;
  const float* base = nullptr;
  float base_factor = 0;
  float factor = 1;
};

/// Each element is summed separately in the order of k, so the output's tiling does not change any bits. A
/// tile's columns of b stay in the cache while all rows of a pass by.
struct Multiply {
  static constexpr std::size_t kRows = 4;
  static constexpr std::size_t kColumns = 16;

  [[gnu::always_inline]] static void run(Product p) {
    for (std::size_t j = 0; j < p.n; j += kColumns) {
      for (std::size_t i = 0; i < p.m; i += kRows) {
        float sums[kRows * kColumns] = {};
        const std::size_t rows = std::min(kRows, p.m - i), columns = std::min(kColumns, p.n - j);
        if (rows == kRows && columns == kColumns) {
          sum_tile(p, i, j, sums);
        } else {
          sum_edge(p, i, j, rows, columns, sums);
        }
        for (std::size_t row = 0; row < rows; ++row)
          finish(p, (i + row) * p.n + j, columns, sums + row * kColumns);
      }
    }
  }

  /// The compiler keeps loops over scalars in memory, so vectors are written explicitly here.
  [[gnu::always_inline]] static void sum_tile(const Product& p, std::size_t i, std::size_t j, float* sums) {
    using Vector [[gnu::vector_size(32)]] = float;
    constexpr std::size_t kLength = sizeof(Vector) / sizeof(float);
    Vector totals[kRows][kColumns / kLength] = {};
    for (std::size_t k = 0; k < p.k; ++k) {
      Vector b[kColumns / kLength];
      std::memcpy(b, p.b + k * p.n + j, sizeof b);
      for (std::size_t row = 0; row < kRows; ++row) {
        const float a = p.a[(i + row) * p.k + k];
        for (std::size_t v = 0; v < kColumns / kLength; ++v) totals[row][v] += a * b[v];
      }
    }
    std::memcpy(sums, totals, sizeof totals);
  }

  [[gnu::always_inline]] static void sum_edge(const Product& p, std::size_t i, std::size_t j,
                                              std::size_t rows, std::size_t columns, float* sums) {
    for (std::size_t k = 0; k < p.k; ++k) {
      const float* b = p.b + k * p.n + j;
      for (std::size_t row = 0; row < rows; ++row) {
        const float a = p.a[(i + row) * p.k + k];
        for (std::size_t column = 0; column < columns; ++column)
          sums[row * kColumns + column] += a * b[column];
      }
    }
  }

  [[gnu::always_inline]] static void finish(const Product& p, std::size_t first, std::size_t columns,
                                            const float* sums) {
    for (std::size_t i = 0; i < columns; ++i) {
      p.out[first + i] = p.base == nullptr ? sums[i] : p.base_factor * p.base[first + i] + p.factor * sums[i];
    }
  }
};

void transpose(std::size_t rows, std::size_t columns, const float* from, float* to) {
  constexpr std::size_t kTile = 16;
  for (std::size_t i = 0; i < rows; i += kTile) {
    for (std::size_t j = 0; j < columns; j += kTile) {
      for (std::size_t row = i; row < std::min(rows, i + kTile); ++row) {
        for (std::size_t column = j; column < std::min(columns, j + kTile); ++column) {
          to[column * rows + row] = from[row * columns + column];
        }
      }
    }
  }
}

/// Updates the momentum and writes the direction.
void write_direction(const MuonFactors& factors, const ParameterStep& step, float* velocity, float* out) {
  const Reader gradients(step.gradient);
  Block block;
  for_each_block(step.gradient.count(), [&](std::size_t first, std::size_t length) {
    const float* gradient = gradients.read(first, length, block.data());
    for (std::size_t i = 0; i < length; ++i) {
      out[first + i] = muon_direction(factors, gradient[i] * step.gradient_factor, velocity[first + i]);
    }
  });
  zero(step.cleared);
}

/// Divides X by its norm.
void normalise(const MuonFactors& factors, const MuonScratch& scratch) {
  double squares = 0;
  for (std::size_t row = 0; row < scratch.shorter; ++row) {
    double sum = 0;
    for (std::size_t column = 0; column < scratch.longer; ++column) {
      const double value = scratch.x[row * scratch.longer + column];
      sum += value * value;
    }
    squares += sum;
  }
  const float divisor = muon_divisor(factors, squares);
  for (std::size_t i = 0; i < scratch.shorter * scratch.longer; ++i) scratch.x[i] /= divisor;
}

/// X = linear X + (cubic X Xt + quintic (X Xt)^2) X.
void newton_schulz(const MuonFactors& factors, MuonScratch& s) {
  transpose(s.shorter, s.longer, s.x, s.other);
  run_best<Multiply>(
      Product{.m = s.shorter, .k = s.longer, .n = s.shorter, .a = s.x, .b = s.other, .out = s.gram});
  run_best<Multiply>(Product{.m = s.shorter,
                             .k = s.shorter,
                             .n = s.shorter,
                             .a = s.gram,
                             .b = s.gram,
                             .out = s.polynomial,
                             .base = s.gram,
                             .base_factor = factors.cubic,
                             .factor = factors.quintic});
  run_best<Multiply>(Product{.m = s.shorter,
                             .k = s.shorter,
                             .n = s.longer,
                             .a = s.polynomial,
                             .b = s.x,
                             .out = s.other,
                             .base = s.x,
                             .base_factor = factors.linear});
  std::swap(s.x, s.other);
}

}  // namespace

std::size_t muon_scratch_bytes(MatrixShape shape) {
  return MuonScratch::bytes(shape);
}

void muon_step(const MuonOptions& options, MatrixShape shape, const ParameterStep& parameter,
               BufferView momentum, BufferView scratch) {
  check_muon_step(shape, parameter, momentum, scratch);
  const MuonFactors factors(options);
  MuonScratch s(shape, scratch);
  const bool is_tall = shape.rows > shape.columns;
  write_direction(factors, parameter, momentum.as<float>().data(), is_tall ? s.other : s.x);
  if (is_tall) transpose(shape.rows, shape.columns, s.other, s.x);
  normalise(factors, s);
  for (int step = 0; step < options.steps; ++step) newton_schulz(factors, s);
  if (is_tall) {
    transpose(shape.columns, shape.rows, s.x, s.other);
    std::swap(s.x, s.other);
  }
  float* values = parameter.master.as<float>().data();
  for (std::size_t i = 0; i < shape.count(); ++i) {
    values[i] = values[i] * factors.kept + factors.minus_step * s.x[i];
  }
  if (parameter.parameter.view.bytes > 0) {
    cast({parameter.master, core::DType::f32}, parameter.parameter);
  }
}

}  // namespace troupe::gpu
