#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace troupe::apps::gpt {

/// The upper half of an fp32 number. Kernels compute in fp32; elements are what is stored in memory.
struct Bf16 {
  std::uint16_t bits;
};

__host__ __device__ inline float widened(float value) {
  return value;
}

__host__ __device__ inline float widened(Bf16 value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value.bits) << 16;
  float wide = 0;
  memcpy(&wide, &bits, sizeof wide);
  return wide;
}

/// Rounds to nearest even; NaN stays NaN.
template <class E>
__host__ __device__ inline E narrowed(float value);

template <>
__host__ __device__ inline float narrowed<float>(float value) {
  return value;
}

template <>
__host__ __device__ inline Bf16 narrowed<Bf16>(float value) {
  std::uint32_t bits = 0;
  memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7FFF'FFFFU) > 0x7F80'0000U) return {static_cast<std::uint16_t>(bits >> 16 | 0x40U)};
  return {static_cast<std::uint16_t>((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16)};
}

/// W adjacent elements, which the device loads and stores at once. Their address must be aligned to their
/// total size.
template <class E, int W>
struct alignas(sizeof(E) * W) Pack {
  E at[W];
};

/// The number of elements in a load of 16 bytes, the device's widest.
template <class E>
inline constexpr int kWide = 16 / static_cast<int>(sizeof(E));

template <class E, int W>
__device__ inline Pack<E, W> load(const E* from) {
  return *reinterpret_cast<const Pack<E, W>*>(from);
}

template <class E, int W>
__device__ inline void store(const Pack<E, W>& pack, E* to) {
  *reinterpret_cast<Pack<E, W>*>(to) = pack;
}

}  // namespace troupe::apps::gpt
