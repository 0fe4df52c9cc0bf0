#include "gpu/host/kernels/convert.hpp"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "core/check.hpp"
#include "gpu/host/kernels/arithmetic.hpp"

namespace troupe::gpu {
namespace {

constexpr std::uint32_t kInfinity = 0x7f80'0000U;
constexpr std::uint32_t kQuiet = 0x0040'0000U;
constexpr int kMantissaBits = 23;
constexpr std::uint32_t kBias = 127;

/// For magnitudes, which have no sign bit: AVX2 compares signed integers only.
[[gnu::always_inline]] inline bool is_above(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>(a) > static_cast<std::int32_t>(b);
}

/// `chosen` or `other`, without a branch: GCC does not turn every conditional into a vector select.
[[gnu::always_inline]] inline std::uint32_t select(bool condition, std::uint32_t chosen,
                                                   std::uint32_t other) {
  const std::uint32_t mask = 0U - static_cast<std::uint32_t>(condition);
  return (chosen & mask) | (other & ~mask);
}

/// A format narrower than fp32, as in core/dtype.cpp, with conversions that have no branch: all cases are
/// computed and one is selected, so that the compiler turns loops over them into vector instructions.
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

  [[gnu::always_inline]] static std::uint32_t widen(std::uint32_t code) {
    const std::uint32_t magnitude = code & (kSign - 1);
    const std::uint32_t normal = (magnitude << kShift) + kRebias;
    // The smallest denormal counts them all. A signed integer converts faster.
    constexpr float kUnit = std::bit_cast<float>((kLeastField - mantissa_bits) << kMantissaBits);
    const float denormal = static_cast<float>(static_cast<std::int32_t>(magnitude)) * kUnit;
    const std::uint32_t finite =
        select(is_above(magnitude, kMantissa), normal, std::bit_cast<std::uint32_t>(denormal));
    const std::uint32_t nan = kInfinity | kQuiet | ((magnitude & kMantissa) << kShift);
    const bool is_nan = is_above(magnitude, has_infinity ? kOverflow : kOverflow - 1);
    const std::uint32_t special = select(is_nan, nan, kInfinity);
    const std::uint32_t bits = select(is_above(magnitude, kOverflow - 1), special, finite);
    return bits | ((code & kSign) << (31 - exponent_bits - mantissa_bits));
  }

  [[gnu::always_inline]] static std::uint32_t narrow(std::uint32_t bits) {
    const std::uint32_t magnitude = bits & 0x7fff'ffffU;
    const std::uint32_t rebiased = magnitude - kRebias;
    // A carry out of the mantissa moves into the exponent, as it must.
    const std::uint32_t odd = (rebiased >> kShift) & 1U;
    const std::uint32_t normal = (rebiased + (1U << (kShift - 1)) - 1 + odd) >> kShift;
    // Adding a number whose last bit weighs as much as the smallest denormal rounds to denormals.
    constexpr std::uint32_t kAnchor = (kLeastField + kShift) << kMantissaBits;
    const float anchored = std::bit_cast<float>(magnitude) + std::bit_cast<float>(kAnchor);
    const std::uint32_t denormal = std::bit_cast<std::uint32_t>(anchored) - kAnchor;
    const std::uint32_t nan = kOverflow | (1U << (mantissa_bits - 1)) | ((magnitude >> kShift) & kMantissa);
    std::uint32_t code = select(is_above(normal, kOverflow), kOverflow, normal);
    code = select(is_above(kLeastField << kMantissaBits, magnitude), denormal, code);
    code = select(is_above(magnitude, kInfinity), nan, code);
    return code | ((bits >> (31 - exponent_bits - mantissa_bits)) & kSign);
  }
};

using F16 = Narrow<std::uint16_t, 5, 10, true>;
using E4m3 = Narrow<std::uint8_t, 4, 3, false>;
using E5m2 = Narrow<std::uint8_t, 5, 2, true>;

/// The upper half of an fp32, whose denormals are fp32's: nothing to rebias.
struct Bf16 {
  using code_type = std::uint16_t;

  [[gnu::always_inline]] static std::uint32_t widen(std::uint32_t code) { return code << 16; }

  [[gnu::always_inline]] static std::uint32_t narrow(std::uint32_t bits) {
    const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    return is_above(bits & 0x7fff'ffffU, kInfinity) ? (bits | kQuiet) >> 16 : rounded;
  }
};

template <class Format>
[[gnu::always_inline]] inline void widen_all(const std::byte* source, float* destination, std::size_t count) {
  const auto* codes = reinterpret_cast<const typename Format::code_type*>(source);
  for (std::size_t i = 0; i < count; ++i) destination[i] = std::bit_cast<float>(Format::widen(codes[i]));
}

template <class Format>
[[gnu::always_inline]] inline void narrow_all(const float* source, std::byte* destination,
                                              std::size_t count) {
  auto* codes = reinterpret_cast<typename Format::code_type*>(destination);
  for (std::size_t i = 0; i < count; ++i) {
    codes[i] =
        static_cast<typename Format::code_type>(Format::narrow(std::bit_cast<std::uint32_t>(source[i])));
  }
}

template <class Format>
[[gnu::always_inline]] inline void add_all(const std::byte* a, const std::byte* b, float* sum,
                                           std::size_t count) {
  const auto* a_codes = reinterpret_cast<const typename Format::code_type*>(a);
  const auto* b_codes = reinterpret_cast<const typename Format::code_type*>(b);
  for (std::size_t i = 0; i < count; ++i) {
    sum[i] =
        std::bit_cast<float>(Format::widen(a_codes[i])) + std::bit_cast<float>(Format::widen(b_codes[i]));
  }
}

template <class Format>
struct Plain {
  static void widen(const std::byte* source, float* destination, std::size_t count) {
    widen_all<Format>(source, destination, count);
  }
  static void narrow(const float* source, std::byte* destination, std::size_t count) {
    narrow_all<Format>(source, destination, count);
  }
  static void add(const std::byte* a, const std::byte* b, float* sum, std::size_t count) {
    add_all<Format>(a, b, sum, count);
  }
};

struct Same {
  static void widen(const std::byte* source, float* destination, std::size_t count) {
    std::copy_n(reinterpret_cast<const float*>(source), count, destination);
  }
  static void narrow(const float* source, std::byte* destination, std::size_t count) {
    std::copy_n(source, count, reinterpret_cast<float*>(destination));
  }
  static void add(const std::byte* a, const std::byte* b, float* sum, std::size_t count) {
    gpu::add(reinterpret_cast<const float*>(a), reinterpret_cast<const float*>(b), sum, count);
  }
};

/// The same loops, compiled for AVX2.
template <class Format>
struct Avx2 {
  [[gnu::target("avx2")]] static void widen(const std::byte* source, float* destination, std::size_t count) {
    widen_all<Format>(source, destination, count);
  }
  [[gnu::target("avx2")]] static void narrow(const float* source, std::byte* destination, std::size_t count) {
    narrow_all<Format>(source, destination, count);
  }
  [[gnu::target("avx2")]] static void add(const std::byte* a, const std::byte* b, float* sum,
                                          std::size_t count) {
    add_all<Format>(a, b, sum, count);
  }
};

/// f16 has instructions of its own.
struct F16c {
  static constexpr std::size_t kLanes = 8;
  static constexpr std::size_t kCodeBytes = kLanes * sizeof(std::uint16_t);

  [[gnu::target("avx,f16c")]] static void widen(const std::byte* source, float* destination,
                                                std::size_t count) {
    std::size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) widen_lanes(source + 2 * i, destination + i);
    if (i == count) return;
    std::array<std::byte, kCodeBytes> codes{};
    std::array<float, kLanes> values{};
    std::memcpy(codes.data(), source + 2 * i, 2 * (count - i));
    widen_lanes(codes.data(), values.data());
    std::copy_n(values.data(), count - i, destination + i);
  }

  [[gnu::target("avx,f16c")]] static void narrow(const float* source, std::byte* destination,
                                                 std::size_t count) {
    std::size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) narrow_lanes(source + i, destination + 2 * i);
    if (i == count) return;
    std::array<std::byte, kCodeBytes> codes{};
    std::array<float, kLanes> values{};
    std::copy_n(source + i, count - i, values.data());
    narrow_lanes(values.data(), codes.data());
    std::memcpy(destination + 2 * i, codes.data(), 2 * (count - i));
  }

  [[gnu::target("avx,f16c")]] static void add(const std::byte* a, const std::byte* b, float* sum,
                                              std::size_t count) {
    std::size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      _mm256_storeu_ps(sum + i, _mm256_add_ps(load_lanes(a + 2 * i), load_lanes(b + 2 * i)));
    }
    if (i == count) return;
    std::array<float, kLanes> more{};
    widen(a + 2 * i, sum + i, count - i);
    widen(b + 2 * i, more.data(), count - i);
    for (std::size_t k = 0; i + k < count; ++k) sum[i + k] += more[k];
  }

 private:
  [[gnu::target("avx,f16c")]] static __m256 load_lanes(const std::byte* source) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source)));
  }
  [[gnu::target("avx,f16c")]] static void widen_lanes(const std::byte* source, float* destination) {
    _mm256_storeu_ps(destination, load_lanes(source));
  }
  [[gnu::target("avx,f16c")]] static void narrow_lanes(const float* source, std::byte* destination) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(destination),
                     _mm256_cvtps_ph(_mm256_loadu_ps(source), _MM_FROUND_TO_NEAREST_INT));
  }
};

template <class Functions>
Converter converter() {
  return {Functions::widen, Functions::narrow, Functions::add};
}

template <class Vector, class Scalar>
Converter converter(InstructionSet instructions) {
  return instructions == InstructionSet::avx2 ? converter<Vector>() : converter<Scalar>();
}

}  // namespace

Converter converter_of(core::DType dtype, InstructionSet instructions) {
  switch (dtype) {
    case core::DType::f32:
      return converter<Same>();
    case core::DType::f16:
      return converter<F16c, Plain<F16>>(instructions);
    case core::DType::bf16:
      return converter<Avx2<Bf16>, Plain<Bf16>>(instructions);
    case core::DType::f8_e4m3:
      return converter<Avx2<E4m3>, Plain<E4m3>>(instructions);
    case core::DType::f8_e5m2:
      return converter<Avx2<E5m2>, Plain<E5m2>>(instructions);
    default:
      CHECK(false, "kernels take floating elements of at most 32 bits");
  }
}

Converter converter_of(core::DType dtype) {
  return converter_of(dtype, best_instruction_set());
}

}  // namespace troupe::gpu
