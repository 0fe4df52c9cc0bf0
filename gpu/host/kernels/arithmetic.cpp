#include "gpu/host/kernels/arithmetic.hpp"

#include <bit>

namespace troupe::gpu {

[[gnu::target_clones("avx2", "default")]] void add(const float* a, const float* b, float* sum,
                                                   std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) sum[i] = a[i] + b[i];
}

[[gnu::target_clones("avx2", "default")]] void multiply(const float* values, float factor, float* product,
                                                        std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) product[i] = values[i] * factor;
}

[[gnu::target_clones("avx2", "default")]] std::uint32_t largest_magnitude(const float* values,
                                                                          std::size_t count) {
  // Without their sign floats order as integers, and signed integers compare faster.
  std::int32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t magnitude = std::bit_cast<std::int32_t>(values[i]) & 0x7fff'ffff;
    largest = magnitude > largest ? magnitude : largest;
  }
  return static_cast<std::uint32_t>(largest);
}

}  // namespace troupe::gpu
