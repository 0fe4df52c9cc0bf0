#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/dtype.hpp"

namespace troupe::tests {

inline constexpr std::size_t kMxBlock = 32;

/// The non-negative numbers that an element can be, by their codes.
inline std::vector<double> mx_numbers(core::DType element) {
  std::vector<double> numbers;
  for (int code = 0; code < 128; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    const float value =
        element == core::DType::f8_e4m3 ? core::f8_e4m3_to_float(byte) : core::f8_e5m2_to_float(byte);
    if (std::isfinite(value)) numbers.push_back(value);
  }
  return numbers;
}

/// The code nearest to a magnitude, of two as near the even one; beyond the last number it.
inline std::size_t nearest_mx_code(const std::vector<double>& numbers, double magnitude) {
  const auto above = std::lower_bound(numbers.begin(), numbers.end(), magnitude);
  if (above == numbers.begin()) return 0;
  if (above == numbers.end()) return numbers.size() - 1;
  const auto code = static_cast<std::size_t>(above - numbers.begin());
  const double over = *above - magnitude;
  const double under = magnitude - *(above - 1);
  if (over == under) return code % 2 == 0 ? code : code - 1;
  return over < under ? code : code - 1;
}

/// Values in microscaling blocks.
struct MxReference {
  std::vector<std::uint8_t> packed;
  std::vector<float> values;
};

/// By the specification's words, in double: the last block may be short.
inline MxReference reference_mx(core::DType element, const std::vector<float>& values) {
  const auto numbers = mx_numbers(element);
  const int largest_exponent = element == core::DType::f8_e4m3 ? 8 : 15;
  const int least = element == core::DType::f8_e4m3 ? -124 : -117;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  MxReference blocks;
  std::vector<std::uint8_t> scales;
  for (std::size_t first = 0; first < values.size(); first += kMxBlock) {
    const std::size_t end = std::min(values.size(), first + kMxBlock);
    double largest = 0;
    bool is_finite = true;
    for (std::size_t i = first; i < end; ++i) {
      is_finite = is_finite && std::isfinite(values[i]);
      largest = std::max(largest, std::abs(static_cast<double>(values[i])));
    }
    const int exponent =
        !is_finite || largest == 0 ? least : std::max(least, std::ilogb(largest) - largest_exponent);
    scales.push_back(is_finite ? static_cast<std::uint8_t>(exponent + 127) : 255);
    for (std::size_t i = first; i < end; ++i) {
      if (!is_finite) {
        blocks.packed.push_back(element == core::DType::f8_e4m3 ? core::float_to_f8_e4m3(nan)
                                                                : core::float_to_f8_e5m2(nan));
        blocks.values.push_back(nan);
        continue;
      }
      const auto code =
          nearest_mx_code(numbers, std::ldexp(std::abs(static_cast<double>(values[i])), -exponent));
      blocks.packed.push_back(static_cast<std::uint8_t>(code | (std::signbit(values[i]) ? 128U : 0U)));
      const auto magnitude = static_cast<float>(std::ldexp(numbers[code], exponent));
      blocks.values.push_back(std::signbit(values[i]) ? -magnitude : magnitude);
    }
  }
  blocks.packed.insert(blocks.packed.end(), scales.begin(), scales.end());
  return blocks;
}

}  // namespace troupe::tests
