#include "gpu/host/kernels/arithmetic.hpp"

#include <bit>

#include "gpu/host/kernels/instructions.hpp"

namespace troupe::gpu {
namespace {

struct Add {
  [[gnu::always_inline]] static void run(const float* a, const float* b, float* sum, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) sum[i] = a[i] + b[i];
  }
};

struct AddAndMultiply {
  [[gnu::always_inline]] static void run(const float* a, const float* b, float factor, float* result,
                                         std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) result[i] = (a[i] + b[i]) * factor;
  }
};

struct Multiply {
  [[gnu::always_inline]] static void run(const float* values, float factor, float* product,
                                         std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) product[i] = values[i] * factor;
  }
};

struct LargestMagnitude {
  [[gnu::always_inline]] static std::uint32_t run(const float* values, std::size_t count) {
    // Without their sign, floats have the order of integers, and signed integers compare faster.
    std::int32_t largest = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::int32_t magnitude = std::bit_cast<std::int32_t>(values[i]) & 0x7fff'ffff;
      largest = magnitude > largest ? magnitude : largest;
    }
    return static_cast<std::uint32_t>(largest);
  }
};

}  // namespace

void add(const float* a, const float* b, float* sum, std::size_t count) {
  run_best<Add>(a, b, sum, count);
}

void add_and_multiply(const float* a, const float* b, float factor, float* result, std::size_t count) {
  run_best<AddAndMultiply>(a, b, factor, result, count);
}

void multiply(const float* values, float factor, float* product, std::size_t count) {
  run_best<Multiply>(values, factor, product, count);
}

std::uint32_t largest_magnitude(const float* values, std::size_t count) {
  return run_best<LargestMagnitude>(values, count);
}

}  // namespace troupe::gpu
