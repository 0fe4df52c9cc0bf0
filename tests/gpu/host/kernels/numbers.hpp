#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "core/dtype.hpp"

namespace troupe::gpu {

/// The scalar conversions of core/dtype.hpp by dtype: the reference of all kernels.
inline float reference_widen(core::DType dtype, const std::byte* element) {
  const auto byte = static_cast<std::uint8_t>(*element);
  std::uint16_t half = 0;
  std::memcpy(&half, element, core::size_of(dtype) == 1 ? 1 : 2);
  float value = 0;
  switch (dtype) {
    case core::DType::f32:
      std::memcpy(&value, element, sizeof value);
      return value;
    case core::DType::f16:
      return core::f16_to_float(half);
    case core::DType::bf16:
      return core::bf16_to_float(half);
    case core::DType::f8_e4m3:
      return core::f8_e4m3_to_float(byte);
    default:
      return core::f8_e5m2_to_float(byte);
  }
}

inline std::uint32_t reference_narrow(core::DType dtype, float value) {
  switch (dtype) {
    case core::DType::f32:
      return std::bit_cast<std::uint32_t>(value);
    case core::DType::f16:
      return core::float_to_f16(value);
    case core::DType::bf16:
      return core::float_to_bf16(value);
    case core::DType::f8_e4m3:
      return core::float_to_f8_e4m3(value);
    default:
      return core::float_to_f8_e5m2(value);
  }
}

/// The value after one rounding to `dtype`.
inline float rounded(core::DType dtype, float value) {
  const std::uint32_t code = reference_narrow(dtype, value);
  return reference_widen(dtype, reinterpret_cast<const std::byte*>(&code));
}

/// The elements as they lie in memory.
inline std::vector<std::byte> codes_of(core::DType dtype, std::span<const float> values) {
  const std::size_t size = core::size_of(dtype);
  std::vector<std::byte> codes(values.size() * size);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint32_t code = reference_narrow(dtype, values[i]);
    std::memcpy(&codes[i * size], &code, size);
  }
  return codes;
}

/// Equal bits, where all NaN are one.
inline bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

/// Numbers of all magnitudes that a dtype has, with some zeros, denormals, halves between two narrow values,
/// and, when asked for, NaN and Inf.
inline std::vector<float> mixed_numbers(std::size_t count, std::uint32_t seed, bool with_nonfinite = false) {
  std::mt19937 bits(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    const std::uint32_t word = bits();
    const std::uint32_t kind = bits() % 16;
    if (kind == 0) {
      value = std::bit_cast<float>(word & 0x8000'0000U);
    } else if (kind == 1) {
      value = std::bit_cast<float>(word & 0x807f'ffffU);
    } else if (kind == 2) {
      value = std::bit_cast<float>((word & 0xbfff'0000U) | 0x8000U);
    } else if (kind == 3 && with_nonfinite) {
      value = std::bit_cast<float>(word | 0x7f80'0000U);
    } else if (kind == 4 && with_nonfinite) {
      value = std::bit_cast<float>((word & 0x8000'0000U) | 0x7f80'0000U);
    } else {
      const int exponent = static_cast<int>(bits() % 40) - 25;
      value = std::ldexp(static_cast<float>(static_cast<std::int32_t>(word)), exponent - 31);
    }
  }
  return values;
}

/// Counts around the widths of vectors and blocks.
inline constexpr std::size_t kCounts[] = {0, 1, 2, 7, 8, 9, 15, 17, 31, 33, 511, 512, 513, 1023, 1025, 2600};

}  // namespace troupe::gpu
