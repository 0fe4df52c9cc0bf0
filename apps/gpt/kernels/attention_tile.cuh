#pragma once

#include <type_traits>

#include "apps/gpt/kernels/async_copy.cuh"
#include "apps/gpt/kernels/fragments.cuh"
#include "apps/gpt/kernels/kernels.hpp"

namespace troupe::apps::gpt::cuda {

/// A block of four warps has a tile of 64 rows, 16 per warp, and iterates over tiles of kPassing other rows
/// in shared memory.
inline constexpr unsigned kAttentionThreads = 128;
inline constexpr unsigned kTileRows = 64;
template <class E>
inline constexpr unsigned kPassing = std::is_same_v<E, float> ? 32 : 64;

/// How many tiles of each tensor a block has room for in its 48 KiB.
template <int kD>
inline constexpr int kPlaces = kD <= 64 ? 2 : 1;

/// How many blocks of a multiprocessor the registers are shared by; measured on an H200. Sums over wide heads
/// need them all, and products in fp32 are not for speed.
template <class E, int kD>
inline constexpr int kForwardBlocks = std::is_same_v<E, float> ? 1 : 3;
template <class E, int kD>
inline constexpr int kKeysBlocks = std::is_same_v<E, float> || kD > 64 ? 1 : 3;
template <class E, int kD>
inline constexpr int kQueriesBlocks = std::is_same_v<E, float> || kD > 64 ? 1 : 4;

inline constexpr float kLog2E = 1.44269504088896341F;

/// 2^x; zero where that is less than 2^-126.
__device__ inline float power_of_two(float x) {
#ifdef __CUDACC__
  float power = 0;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
#else
  return exp2f(x);
#endif
}

template <class E>
__host__ __device__ std::size_t key_length_of(const Attention<E>& a) {
  return a.rows.positions > 0 ? a.rows.positions : a.length;
}

/// Rows of one head of one sequence as they are laid out in (B, L, H, D), and those of its keys in (B, T, K,
/// D).
template <class E>
struct Head {
  unsigned length, key_length, size;
  unsigned half, lower, upper;  ///< rows from `half` on are at positions from `upper` on
  std::size_t offset;           ///< of row 0 in (B, L, H, D)
  std::size_t statistics;       ///< of row 0 in (B, H, L)
  std::size_t stride;
  std::size_t key_offset;  ///< of position 0 in (B, T, K, D)
  std::size_t key_stride;

  __device__ Head(const Attention<E>& a, unsigned batch, unsigned head)
      : length(static_cast<unsigned>(a.length)),
        key_length(static_cast<unsigned>(key_length_of(a))),
        size(static_cast<unsigned>(a.head_size)),
        half(a.rows.positions > 0 ? length / 2 : length),
        lower(static_cast<unsigned>(a.rows.lower)),
        upper(a.rows.positions > 0 ? static_cast<unsigned>(a.rows.upper) : length),
        offset((batch * a.length * a.heads + head) * a.head_size),
        statistics((batch * a.heads + head) * a.length),
        stride(a.heads * a.head_size),
        key_offset((batch * key_length_of(a) * a.key_heads + head / (a.heads / a.key_heads)) * a.head_size),
        key_stride(a.key_heads * a.head_size) {}

  /// The head number `blockIdx.y` among all (batch, head).
  __device__ static Head of_block(const Attention<E>& a) {
    const auto heads = static_cast<unsigned>(a.heads);
    return Head(a, blockIdx.y / heads, blockIdx.y % heads);
  }

  __device__ Rows<E> rows(const E* tensor) const { return {tensor + offset, stride, length, size}; }
  __device__ Rows<E> key_rows(const E* tensor) const {
    return {tensor + key_offset, key_stride, key_length, size};
  }
  /// Position of a row, which sees the keys up to it. Later rows have later positions, even those past the
  /// last row.
  __device__ unsigned position(unsigned row) const { return row < half ? lower + row : upper + (row - half); }
  /// The number of keys that a tile of rows sees.
  __device__ unsigned keys_seen(unsigned tile_row) const {
    const unsigned seen = position(tile_row + kTileRows - 1) + 1;
    return seen < key_length ? seen : key_length;
  }
};

/// Rows of the tile that a block iterates over, with columns up to kD. The extra columns spread a column's
/// rows over the banks.
template <class E, int kD>
struct alignas(16) SharedTile {
  static constexpr unsigned kStride = kD + 8;
  E at[kPassing<E> * kStride];

  /// Begins to copy rows; called by all threads of the block.
  __device__ void fill(const Rows<E>& matrix, unsigned first_row) {
    if (matrix.columns % kWide<E> == 0) {
      copy<kWide<E>>(matrix, first_row);
    } else {
      copy<2>(matrix, first_row);
    }
  }

 private:
  template <int W>
  __device__ void copy(const Rows<E>& matrix, unsigned first_row) {
    constexpr unsigned kPacks = kD / W, kRowsAtOnce = kAttentionThreads / kPacks;
    static_assert(kAttentionThreads % kPacks == 0 && kPassing<E> % kRowsAtOnce == 0);
    const unsigned row = threadIdx.x / kPacks, column = threadIdx.x % kPacks * W;
    const unsigned rows = column < matrix.columns && first_row < matrix.rows ? matrix.rows - first_row : 0;
    const E* from = matrix.data + (first_row + row) * matrix.stride + column;
    E* to = at + row * kStride + column;
#pragma unroll
    for (unsigned passed = 0; passed < kPassing<E>; passed += kRowsAtOnce) {
      begin_copy<E, W>(from, to, row + passed < rows);
      from += kRowsAtOnce * matrix.stride;
      to += kRowsAtOnce * kStride;
    }
  }
};

/// A warp's 16 rows of a matrix with kD columns, as the left side of products.
template <class E, int kD>
struct LeftRows {
  FragmentA<E> parts[kD / 16];

  __device__ LeftRows(const Rows<E>& matrix, unsigned first_row) {
#pragma unroll
    for (int k = 0; k < kD / 16; ++k) parts[k] = load_a(matrix, first_row, k * 16);
  }

  /// The products with 8 rows of a tile: scores of rows with rows.
  __device__ FragmentC times(const SharedTile<E, kD>& tile, unsigned first_row) const {
    FragmentC c{};
    if constexpr (kD == 16) {
      multiply_add(c, parts[0], load_b(tile.at, tile.kStride, first_row, 0));
    } else {
#pragma unroll
      for (int k = 0; k < kD / 16; k += 2) {
        FragmentB<E> two[2];
        load_two_b(tile.at, tile.kStride, first_row, k * 16, two);
        multiply_add(c, parts[k], two[0]);
        multiply_add(c, parts[k + 1], two[1]);
      }
    }
    return c;
  }
};

/// A warp's 16 rows of a sum with kD columns.
template <int kD>
struct SumRows {
  FragmentC parts[kD / 8] = {};

  /// Adds weights (16, 16) * tile (16 of its rows, kD).
  template <class E>
  __device__ void add(const FragmentA<E>& weights, const SharedTile<E, kD>& tile, unsigned first_row) {
#pragma unroll
    for (int n = 0; n < kD / 8; n += 2) {
      FragmentB<E> two[2];
      load_two_b_by_rows(tile.at, tile.kStride, first_row, n * 8, two);
      multiply_add(parts[n], weights, two[0]);
      multiply_add(parts[n + 1], weights, two[1]);
    }
  }

  /// Row g of the lane is multiplied by factors[0], row g + 8 by factors[1].
  __device__ void scale(const float (&factors)[2]) {
#pragma unroll
    for (int n = 0; n < kD / 8; ++n) {
      for (int i = 0; i < 4; ++i) parts[n].values[i] *= factors[i / 2];
    }
  }

  /// Stores the rows of `to` from `first_row` on.
  template <class E>
  __device__ void store_rows(E* first, const Rows<E>& to, unsigned first_row) const {
#pragma unroll
    for (int n = 0; n < kD / 8; ++n) {
      const unsigned column = n * 8 + pair_of_lane();
      for (int half = 0; half < 2; ++half) {
        const unsigned row = first_row + group_of_lane() + half * 8;
        if (row >= to.rows || column >= to.columns) continue;
        const float* values = parts[n].values + 2 * half;
        store(Pack<E, 2>{{narrowed<E>(values[0]), narrowed<E>(values[1])}}, first + row * to.stride + column);
      }
    }
  }
};

/// Calls launch_for<kD>() with the smallest kD that holds the head.
template <class Launch>
cudaError_t with_head_size(std::size_t head_size, Launch launch_for) {
  if (head_size <= 16) return launch_for(std::integral_constant<int, 16>());
  if (head_size <= 64) return launch_for(std::integral_constant<int, 64>());
  return launch_for(std::integral_constant<int, 128>());
}

}  // namespace troupe::apps::gpt::cuda
