#include "core/dtype.hpp"

#include <algorithm>
#include <array>
#include <bit>

#include "core/errors.hpp"

namespace troupe::core {
namespace {

struct DTypeFacts {
  std::string_view name;
  std::size_t bytes;
  bool floating;
};

// In the order of the enumeration.
constexpr std::array<DTypeFacts, 15> kFacts{{
    {"f64", 8, true},
    {"f32", 4, true},
    {"f16", 2, true},
    {"bf16", 2, true},
    {"f8_e4m3", 1, true},
    {"f8_e5m2", 1, true},
    {"i64", 8, false},
    {"i32", 4, false},
    {"i16", 2, false},
    {"i8", 1, false},
    {"u64", 8, false},
    {"u32", 4, false},
    {"u16", 2, false},
    {"u8", 1, false},
    {"boolean", 1, false},
}};

const DTypeFacts& facts_of(DType dtype) noexcept {
  return kFacts[static_cast<std::size_t>(dtype)];
}

/// A binary format narrower than fp32: sign, exponent and mantissa fields from the top. Without infinity (the
/// "fn" form) the code of all ones is NaN, and the others with the highest exponent are numbers.
struct NarrowFormat {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;

  constexpr std::uint32_t sign() const { return 1U << (exponent_bits + mantissa_bits); }
  /// The code above the largest finite number: infinity, or NaN.
  constexpr std::uint32_t overflow() const {
    return has_infinity ? sign() - (1U << mantissa_bits) : sign() - 1;
  }
  /// Exponent of the smallest normal number; denormals share it.
  constexpr int least_exponent() const { return 2 - (1 << (exponent_bits - 1)); }
};

constexpr NarrowFormat kF16{5, 10, true};
constexpr NarrowFormat kBf16{8, 7, true};
constexpr NarrowFormat kE4m3{4, 3, false};
constexpr NarrowFormat kE5m2{5, 2, true};

constexpr std::uint32_t kFloatSign = 0x8000'0000U;
constexpr std::uint32_t kFloatInfinity = 0x7f80'0000U;
constexpr std::uint32_t kFloatQuiet = 0x0040'0000U;
constexpr std::uint32_t kFloatHidden = 0x0080'0000U;
constexpr int kFloatMantissaBits = 23;
constexpr int kFloatBias = 127;

template <NarrowFormat format>
float widen(std::uint32_t code) noexcept {
  constexpr int kShift = kFloatMantissaBits - format.mantissa_bits;
  const std::uint32_t sign = (code & format.sign()) != 0 ? kFloatSign : 0;
  const std::uint32_t magnitude = code & (format.sign() - 1);
  const std::uint32_t mantissa = magnitude & ((1U << format.mantissa_bits) - 1);
  if (magnitude >= format.overflow()) {
    const bool is_nan = !format.has_infinity || mantissa != 0;
    const std::uint32_t payload = is_nan ? kFloatQuiet | (mantissa << kShift) : 0;
    return std::bit_cast<float>(sign | kFloatInfinity | payload);
  }
  if (format.exponent_bits == 8) return std::bit_cast<float>(sign | (magnitude << kShift));
  constexpr std::uint32_t kRebias = kFloatBias - 1 + format.least_exponent();
  if (magnitude >> format.mantissa_bits != 0) {
    return std::bit_cast<float>(sign | ((magnitude << kShift) + (kRebias << kFloatMantissaBits)));
  }
  constexpr std::uint32_t kUnitExponent =
      kFloatBias + static_cast<std::uint32_t>(format.least_exponent() - format.mantissa_bits);
  const float unit = std::bit_cast<float>(sign | (kUnitExponent << kFloatMantissaBits));
  return static_cast<float>(mantissa) * unit;
}

template <NarrowFormat format>
std::uint32_t narrow(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits & kFloatSign) != 0 ? format.sign() : 0;
  const std::uint32_t magnitude = bits & ~kFloatSign;
  if (magnitude > kFloatInfinity) {
    constexpr std::uint32_t kQuiet = 1U << (format.mantissa_bits - 1);
    const std::uint32_t payload =
        (magnitude & (kFloatHidden - 1)) >> (kFloatMantissaBits - format.mantissa_bits);
    return sign | format.overflow() | kQuiet | payload;
  }
  // value = significand * 2^(exponent - 23)
  const auto field = static_cast<int>(magnitude >> kFloatMantissaBits);
  const int exponent = std::max(field, 1) - kFloatBias;
  const std::uint32_t significand = (magnitude & (kFloatHidden - 1)) | (field != 0 ? kFloatHidden : 0);
  const int below = std::max(0, format.least_exponent() - exponent);
  const int shift = kFloatMantissaBits - format.mantissa_bits + below;
  if (shift > kFloatMantissaBits + 1) return sign;  // less than half of the smallest denormal

  // Round to nearest even; a carry out of the mantissa goes into the exponent, as it must.
  const std::uint32_t kept = significand >> shift;
  const std::uint32_t rest = significand & ((1U << shift) - 1);
  const std::uint32_t half = 1U << (shift - 1);
  const std::uint32_t rounded = kept + (rest > half || (rest == half && (kept & 1U) != 0) ? 1 : 0);
  const auto above = static_cast<std::uint32_t>(std::max(0, exponent - format.least_exponent()));
  const std::uint32_t code = (above << format.mantissa_bits) + rounded;
  return sign | std::min(code, format.overflow());
}

}  // namespace

std::size_t size_of(DType dtype) noexcept {
  return facts_of(dtype).bytes;
}

std::string_view name_of(DType dtype) noexcept {
  return facts_of(dtype).name;
}

Result<DType> dtype_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kFacts.size(); ++i) {
    if (kFacts[i].name == name) return static_cast<DType>(i);
  }
  return fail(Errc::invalid_argument,
              "'{}' is not a dtype; choose one of f64, f32, f16, bf16, f8_e4m3, f8_e5m2, "
              "i64, i32, i16, i8, u64, u32, u16, u8, boolean",
              name);
}

bool is_floating(DType dtype) noexcept {
  return facts_of(dtype).floating;
}

float f16_to_float(std::uint16_t bits) noexcept {
  return widen<kF16>(bits);
}
std::uint16_t float_to_f16(float value) noexcept {
  return static_cast<std::uint16_t>(narrow<kF16>(value));
}
float bf16_to_float(std::uint16_t bits) noexcept {
  return widen<kBf16>(bits);
}
std::uint16_t float_to_bf16(float value) noexcept {
  return static_cast<std::uint16_t>(narrow<kBf16>(value));
}
float f8_e4m3_to_float(std::uint8_t bits) noexcept {
  return widen<kE4m3>(bits);
}
std::uint8_t float_to_f8_e4m3(float value) noexcept {
  return static_cast<std::uint8_t>(narrow<kE4m3>(value));
}
float f8_e5m2_to_float(std::uint8_t bits) noexcept {
  return widen<kE5m2>(bits);
}
std::uint8_t float_to_f8_e5m2(float value) noexcept {
  return static_cast<std::uint8_t>(narrow<kE5m2>(value));
}

}  // namespace troupe::core
