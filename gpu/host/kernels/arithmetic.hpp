#pragma once

#include <cstddef>
#include <cstdint>

namespace troupe::gpu {

/// Operations on a block of fp32 in cache that several kernels use, each operation rounded. A result may
/// overwrite its input.

/// sum = a + b
void add(const float* a, const float* b, float* sum, std::size_t count);
/// result = (a + b) * factor
void add_and_multiply(const float* a, const float* b, float factor, float* result, std::size_t count);
/// product = values * factor
void multiply(const float* values, float factor, float* product, std::size_t count);
/// The largest magnitude as the bits of a float; 0 for no values. NaN is above Inf.
std::uint32_t largest_magnitude(const float* values, std::size_t count);

}  // namespace troupe::gpu
