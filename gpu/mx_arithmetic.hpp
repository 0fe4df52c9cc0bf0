#pragma once

#include <cstdint>

#include "gpu/float_formats.hpp"

namespace troupe::gpu::formats {

/// The arithmetic of microscaling blocks (core/mx_blocks.hpp) for kernels of the host and of GPUs,
/// branch-free, on fp32 as bits. The scale 2^e of a block with the largest magnitude a has e = floor(log2 a)
/// minus the largest exponent of elements, as the specification requires. A block with NaN or Inf has
/// kNanScale, and all of it is NaN.
template <class Format, int largest_exponent, std::uint32_t largest, std::uint32_t least_scale>
struct MxElement {
  using format = Format;
  static constexpr std::uint32_t kNanScale = 255;
  static constexpr std::uint32_t kNan = kInfinity | kQuiet;
  /// A smaller scale would have products that bf16 cannot represent: its denormals are multiples of 2^-133.
  static constexpr std::uint32_t kLeastScale = least_scale;

  /// The scale's byte, e + 127. `magnitude` is the largest of the block.
  TROUPE_HOST_DEVICE static std::uint32_t scale_of(std::uint32_t magnitude) {
    const std::uint32_t field = magnitude >> kMantissaBits;  // 0 for denormals, which are below every scale
    const std::uint32_t scale = field - static_cast<std::uint32_t>(largest_exponent);
    const std::uint32_t finite = select(is_above(kLeastScale, scale), kLeastScale, scale);
    return select(is_above(magnitude, kInfinity - 1), kNanScale, finite);
  }

  /// The code of an element. Values beyond the largest element become that element. Multiplying by powers of
  /// two is exact, except for values that round to zero anyway.
  TROUPE_HOST_DEVICE static std::uint32_t code_of(std::uint32_t bits, std::uint32_t scale) {
    const float inverse = float_of((254U - scale) << kMantissaBits);
    const std::uint32_t scaled = bits_of(float_of(bits) * inverse);
    const std::uint32_t magnitude = scaled & 0x7fff'ffffU;
    const std::uint32_t kept = select(is_above(magnitude, largest), largest, magnitude);
    const std::uint32_t value = kept | (scaled & 0x8000'0000U);
    return Format::narrow(select(scale == kNanScale, kNan, value));
  }

  /// Exact in fp32, and in bf16.
  TROUPE_HOST_DEVICE static std::uint32_t value_of(std::uint32_t code, std::uint32_t scale) {
    const float value = float_of(Format::widen(code)) * float_of(scale << kMantissaBits);
    return select(scale == kNanScale, kNan, bits_of(value));
  }
};

/// Up to 448 = 1.75 * 2^8, in steps of at least 2^-9.
using MxE4m3 = MxElement<E4m3, 8, 0x43e0'0000U, 127 - 133 + 9>;
/// Up to 57344 = 1.75 * 2^15, in steps of at least 2^-16.
using MxE5m2 = MxElement<E5m2, 15, 0x4760'0000U, 127 - 133 + 16>;

}  // namespace troupe::gpu::formats
