#pragma once

#include <cstdint>

#include "gpu/host_device.hpp"

namespace troupe::gpu::formats {

/// The floating formats that kernels accept, for code that a kernel compiler reads (core/dtype.hpp is too
/// heavy for one).
enum class Format : std::uint8_t { f32, f16, bf16, f8_e4m3, f8_e5m2 };

/// A float as its bits, and back. (nvcc's front end does not accept __builtin_bit_cast everywhere.)
TROUPE_HOST_DEVICE std::uint32_t bits_of(float value) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(value);
#else
  return __builtin_bit_cast(std::uint32_t, value);
#endif
}
TROUPE_HOST_DEVICE float float_of(std::uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  return __builtin_bit_cast(float, bits);
#endif
}

inline constexpr std::uint32_t kInfinity = 0x7f80'0000U;
inline constexpr std::uint32_t kQuiet = 0x0040'0000U;
inline constexpr int kMantissaBits = 23;
inline constexpr std::uint32_t kBias = 127;

/// For magnitudes, which have no sign bit: AVX2 compares signed integers only.
TROUPE_HOST_DEVICE bool is_above(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>(a) > static_cast<std::int32_t>(b);
}

/// `chosen` or `other`, without a branch: GCC does not turn every conditional into a vector select.
TROUPE_HOST_DEVICE std::uint32_t select(bool condition, std::uint32_t chosen, std::uint32_t other) {
  const std::uint32_t mask = 0U - static_cast<std::uint32_t>(condition);
  return (chosen & mask) | (other & ~mask);
}

/// A format narrower than fp32, as in core/dtype.cpp, with branch-free conversions: all cases are computed
/// and one is selected, so that the compiler turns loops over them into vector instructions.
template <class Code, int exponent_bits, int mantissa_bits, bool has_infinity>
struct Narrow {
  using code_type = Code;
  static constexpr int kShift = kMantissaBits - mantissa_bits;
  static constexpr std::uint32_t kSign = 1U << (exponent_bits + mantissa_bits);
  static constexpr std::uint32_t kOverflow = has_infinity ? kSign - (1U << mantissa_bits) : kSign - 1;
  static constexpr std::uint32_t kMantissa = (1U << mantissa_bits) - 1;
  /// fp32's exponent field of the smallest normal number.
  static constexpr std::uint32_t kLeastField = kBias + 2 - (1U << (exponent_bits - 1));
  static constexpr std::uint32_t kRebias = (kLeastField - 1) << kMantissaBits;
  static constexpr std::uint32_t kLeast = kLeastField << kMantissaBits;
  /// The power of two that is too large for any number of the format.
  static constexpr std::uint32_t kBeyond = (kLeastField + (1U << exponent_bits) - (has_infinity ? 2 : 1))
                                           << kMantissaBits;

  TROUPE_HOST_DEVICE static std::uint32_t widen(std::uint32_t code) {
    const std::uint32_t magnitude = code & (kSign - 1);
    const std::uint32_t normal = (magnitude << kShift) + kRebias;
    // The value is a multiple of the smallest denormal. A signed integer converts faster.
    constexpr float kUnit = __builtin_bit_cast(float, (kLeastField - mantissa_bits) << kMantissaBits);
    const float denormal = static_cast<float>(static_cast<std::int32_t>(magnitude)) * kUnit;
    const std::uint32_t finite = select(is_above(magnitude, kMantissa), normal, bits_of(denormal));
    const std::uint32_t nan = kInfinity | kQuiet | ((magnitude & kMantissa) << kShift);
    const bool is_nan = is_above(magnitude, has_infinity ? kOverflow : kOverflow - 1);
    const std::uint32_t special = select(is_nan, nan, kInfinity);
    const std::uint32_t bits = select(is_above(magnitude, kOverflow - 1), special, finite);
    return bits | ((code & kSign) << (31 - exponent_bits - mantissa_bits));
  }

  TROUPE_HOST_DEVICE static std::uint32_t narrow(std::uint32_t bits) {
    const std::uint32_t magnitude = bits & 0x7fff'ffffU;
    const std::uint32_t clamped = is_above(magnitude, kBeyond) ? kBeyond : magnitude;
    // The smallest normal number's exponent is that of denormals too.
    const std::uint32_t own = clamped & kInfinity;
    const std::uint32_t exponent = is_above(kLeast, own) ? kLeast : own;
    // Adding a number whose last bit has the weight of the code's last bit rounds to it.
    const std::uint32_t anchor = exponent + (static_cast<std::uint32_t>(kShift) << kMantissaBits);
    const std::uint32_t places = bits_of(float_of(clamped) + float_of(anchor)) - anchor;
    // A carry out of the mantissa goes into the exponent, as it must.
    std::uint32_t code = ((exponent - kLeast) >> kShift) + places;
    if constexpr (has_infinity) {
      const std::uint32_t nan = kOverflow | (1U << (mantissa_bits - 1)) | ((magnitude >> kShift) & kMantissa);
      code = select(is_above(magnitude, kInfinity), nan, code);
    } else {
      code = is_above(code, kOverflow) ? kOverflow : code;
    }
    return code | ((bits >> (31 - exponent_bits - mantissa_bits)) & kSign);
  }
};

using F16 = Narrow<std::uint16_t, 5, 10, true>;
using E4m3 = Narrow<std::uint8_t, 4, 3, false>;
using E5m2 = Narrow<std::uint8_t, 5, 2, true>;

/// The upper half of an fp32; its denormals are fp32's, so nothing needs rebiasing.
struct Bf16 {
  using code_type = std::uint16_t;

  TROUPE_HOST_DEVICE static std::uint32_t widen(std::uint32_t code) { return code << 16; }

  TROUPE_HOST_DEVICE static std::uint32_t narrow(std::uint32_t bits) {
    const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    return is_above(bits & 0x7fff'ffffU, kInfinity) ? (bits | kQuiet) >> 16 : rounded;
  }
};

/// The same interface without any conversion.
struct F32 {
  using code_type = std::uint32_t;

  TROUPE_HOST_DEVICE static std::uint32_t widen(std::uint32_t code) { return code; }
  TROUPE_HOST_DEVICE static std::uint32_t narrow(std::uint32_t bits) { return bits; }
};

}  // namespace troupe::gpu::formats
