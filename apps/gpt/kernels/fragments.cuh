#pragma once

#include "apps/gpt/kernels/element.cuh"
#include "apps/gpt/kernels/reduce.cuh"
#ifndef __CUDACC__
#include <emulated_fragments.hpp>
#endif

namespace troupe::apps::gpt::cuda {

// Matrix products of a warp: c (16, 8) += a (16, 16) * b (16, 8), as the tensor cores' m16n8k16 takes them.
// Lane 4g + t holds
//   of a: rows g and g + 8, columns 2t, 2t + 1, 2t + 8 and 2t + 9;
//   of b: rows 2t, 2t + 1, 2t + 8 and 2t + 9 of column g;
//   of c: columns 2t and 2t + 1 of row g, then of row g + 8.
// So two neighbouring c are laid out as one a.

__device__ inline unsigned group_of_lane() {
  return threadIdx.x % kWarp / 4;
}
__device__ inline unsigned pair_of_lane() {
  return threadIdx.x % 4 * 2;
}

/// Two adjacent elements, in one register.
__device__ inline std::uint32_t both(Bf16 low, Bf16 high) {
  return std::uint32_t{high.bits} << 16 | low.bits;
}
__device__ inline std::uint32_t both(float low, float high) {
#ifdef __CUDA_ARCH__
  std::uint32_t pair = 0;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return both(narrowed<Bf16>(low), narrowed<Bf16>(high));
#endif
}

template <class E>
struct FragmentA;
template <>
struct FragmentA<Bf16> {
  std::uint32_t pairs[4];
};
template <>
struct FragmentA<float> {
  float values[8];
};

template <class E>
struct FragmentB;
template <>
struct FragmentB<Bf16> {
  std::uint32_t pairs[2];
};
template <>
struct FragmentB<float> {
  float values[4];
};

struct FragmentC {
  float values[4];
};

__device__ inline void set_pair(FragmentA<Bf16>& a, int pair, float low, float high) {
  a.pairs[pair] = both(low, high);
}
__device__ inline void set_pair(FragmentA<float>& a, int pair, float low, float high) {
  a.values[2 * pair] = low;
  a.values[2 * pair + 1] = high;
}
__device__ inline void set_pair(FragmentB<Bf16>& b, int pair, Bf16 low, Bf16 high) {
  b.pairs[pair] = both(low, high);
}
__device__ inline void set_pair(FragmentB<float>& b, int pair, float low, float high) {
  b.values[2 * pair] = low;
  b.values[2 * pair + 1] = high;
}

/// The a whose columns are those of two c, side by side.
template <class E>
__device__ inline FragmentA<E> joined(const FragmentC& left, const FragmentC& right) {
  FragmentA<E> a;
  set_pair(a, 0, left.values[0], left.values[1]);
  set_pair(a, 1, left.values[2], left.values[3]);
  set_pair(a, 2, right.values[0], right.values[1]);
  set_pair(a, 3, right.values[2], right.values[3]);
  return a;
}

/// A matrix in memory, of which only some rows and columns exist; the others read as zeros.
template <class E>
struct Rows {
  const E* data;
  std::size_t stride;
  unsigned rows, columns;
};

template <class E>
__device__ inline FragmentA<E> load_a(const Rows<E>& matrix, unsigned first_row, unsigned first_column) {
  FragmentA<E> a;
  for (int pair = 0; pair < 4; ++pair) {
    const unsigned row = first_row + group_of_lane() + pair % 2 * 8;
    const unsigned column = first_column + pair_of_lane() + pair / 2 * 8;
    float low = 0, high = 0;
    if (row < matrix.rows && column < matrix.columns) {
      const auto pack = load<E, 2>(matrix.data + row * matrix.stride + column);
      low = widened(pack.at[0]);
      high = widened(pack.at[1]);
    }
    set_pair(a, pair, low, high);
  }
  return a;
}

/// b (k, n) from a tile in shared memory whose rows are n, and whose columns k.
template <class E>
__device__ inline FragmentB<E> load_b(const E* tile, unsigned stride, unsigned first_n, unsigned first_k) {
  FragmentB<E> b;
  const E* from = tile + (first_n + group_of_lane()) * stride + first_k + pair_of_lane();
  for (int pair = 0; pair < 2; ++pair) {
    const auto pack = load<E, 2>(from + pair * 8);
    set_pair(b, pair, pack.at[0], pack.at[1]);
  }
  return b;
}

/// b (k, n) from a tile in shared memory whose rows are k, and whose columns n.
template <class E>
__device__ inline FragmentB<E> load_b_by_rows(const E* tile, unsigned stride, unsigned first_k,
                                              unsigned first_n) {
  FragmentB<E> b;
  const E* from = tile + (first_k + pair_of_lane()) * stride + first_n + group_of_lane();
  for (int pair = 0; pair < 2; ++pair)
    set_pair(b, pair, from[pair * 8 * stride], from[(pair * 8 + 1) * stride]);
  return b;
}

/// Two b: of the columns from `first_k` on, and of the 16 after them.
template <class E>
__device__ inline void load_two_b(const E* tile, unsigned stride, unsigned first_n, unsigned first_k,
                                  FragmentB<E> (&b)[2]) {
  for (unsigned i = 0; i < 2; ++i) b[i] = load_b(tile, stride, first_n, first_k + 16 * i);
}

/// Two b: of the columns from `first_n` on, and of the 8 after them.
template <class E>
__device__ inline void load_two_b_by_rows(const E* tile, unsigned stride, unsigned first_k, unsigned first_n,
                                          FragmentB<E> (&b)[2]) {
  for (unsigned i = 0; i < 2; ++i) b[i] = load_b_by_rows(tile, stride, first_k, first_n + 8 * i);
}

#ifdef __CUDACC__
// Each lane names a row of 8 elements: lanes 8i to 8i + 7 those of the i-th of four 8x8 matrices.
template <>
__device__ inline void load_two_b<Bf16>(const Bf16* tile, unsigned stride, unsigned first_n, unsigned first_k,
                                        FragmentB<Bf16> (&b)[2]) {
  const unsigned lane = threadIdx.x % kWarp;
  const Bf16* row = tile + (first_n + lane % 8) * stride + first_k + lane / 8 * 8;
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(b[0].pairs[0]), "=r"(b[0].pairs[1]), "=r"(b[1].pairs[0]), "=r"(b[1].pairs[1])
               : "r"(address)
               : "memory");
}

template <>
__device__ inline void load_two_b_by_rows<Bf16>(const Bf16* tile, unsigned stride, unsigned first_k,
                                                unsigned first_n, FragmentB<Bf16> (&b)[2]) {
  const unsigned lane = threadIdx.x % kWarp;
  const Bf16* row = tile + (first_k + lane % 16) * stride + first_n + lane / 16 * 8;
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(b[0].pairs[0]), "=r"(b[0].pairs[1]), "=r"(b[1].pairs[0]), "=r"(b[1].pairs[1])
               : "r"(address)
               : "memory");
}

__device__ inline void multiply_add(FragmentC& c, const FragmentA<Bf16>& a, const FragmentB<Bf16>& b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c.values[0]), "+f"(c.values[1]), "+f"(c.values[2]), "+f"(c.values[3])
      : "r"(a.pairs[0]), "r"(a.pairs[1]), "r"(a.pairs[2]), "r"(a.pairs[3]), "r"(b.pairs[0]), "r"(b.pairs[1]));
}

// Tensor cores have no fp32, so lanes exchange their values: for exactness, not for speed. It is not inlined,
// because it is long and used often.
static __device__ __noinline__ FragmentC multiply_added(FragmentC c, FragmentA<float> a, FragmentB<float> b) {
  const unsigned lane = threadIdx.x % kWarp;
  for (unsigned four = 0; four < 4; ++four) {  // the lane of four that holds two values of each half of k
#pragma unroll
    for (int value = 0; value < 4; ++value) {
      const int in_a = value / 2 * 4 + value % 2;
      const float upper = __shfl_sync(kEveryLane, a.values[in_a], (lane & ~3U) + four);
      const float lower = __shfl_sync(kEveryLane, a.values[in_a + 2], (lane & ~3U) + four);
#pragma unroll
      for (unsigned column = 0; column < 2; ++column) {
        const float other = __shfl_sync(kEveryLane, b.values[value], 4 * (pair_of_lane() + column) + four);
        c.values[column] += upper * other;
        c.values[2 + column] += lower * other;
      }
    }
  }
  return c;
}

__device__ inline void multiply_add(FragmentC& c, const FragmentA<float>& a, const FragmentB<float>& b) {
  c = multiply_added(c, a, b);
}
#else
template <class E>
inline void multiply_add(FragmentC& c, const FragmentA<E>& a, const FragmentB<E>& b) {
  cuda_emulation::multiply_add(c, a, b);
}
#endif

}  // namespace troupe::apps::gpt::cuda
