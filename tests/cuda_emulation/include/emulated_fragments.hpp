#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace troupe::cuda_emulation {

/// What a lane gives to a warp's matrix product, widened: a in the order of its registers, then b.
struct LaneFragments {
  float a[8];
  float b[4];
};

/// Fragments of 16 bits a value come in pairs, in words of 32.
template <std::size_t kCount, class Fragment>
void widen_fragment(const Fragment& fragment, float (&values)[kCount]) {
  if constexpr (sizeof fragment == sizeof values) {
    std::memcpy(values, &fragment, sizeof values);
  } else {
    static_assert(sizeof fragment == kCount * sizeof(std::uint16_t));
    std::uint16_t halves[kCount];
    std::memcpy(halves, &fragment, sizeof halves);
    for (std::size_t i = 0; i < kCount; ++i) {
      const std::uint32_t bits = std::uint32_t{halves[i]} << 16;
      std::memcpy(&values[i], &bits, sizeof bits);
    }
  }
}

/// c (16, 8) += a (16, 16) * b (16, 8) of the calling warp, laid out over its lanes as the instruction
/// mma.m16n8k16 lays them out (PTX ISA, "Matrix Fragments for mma.m16n8k16").
template <class C, class A, class B>
void multiply_add(C& c, const A& a, const B& b) {
  constexpr unsigned kLanes = 32;
  constexpr unsigned kWarps = 32;
  // Two, so that nobody overwrites what another lane has still to read: all lanes meet once in each product.
  static thread_local LaneFragments shared[2][kWarps * kLanes];
  static thread_local unsigned count[kWarps * kLanes];
  LaneFragments* given = shared[count[threadIdx.x]++ % 2] + threadIdx.x / kLanes * kLanes;
  const unsigned lane = lane_in_warp();
  widen_fragment(a, given[lane].a);
  widen_fragment(b, given[lane].b);
  exchange_in_warp(0, lane);
  for (unsigned half = 0; half < 2; ++half) {
    for (unsigned column = 0; column < 2; ++column) {
      float& sum = c.values[2 * half + column];
      for (unsigned k = 0; k < 16; ++k) {
        const LaneFragments& left = given[lane / 4 * 4 + k % 8 / 2];
        const LaneFragments& right = given[(lane % 4 * 2 + column) * 4 + k % 8 / 2];
        sum += left.a[k / 8 * 4 + half * 2 + k % 2] * right.b[k / 8 * 2 + k % 2];
      }
    }
  }
}

}  // namespace troupe::cuda_emulation
