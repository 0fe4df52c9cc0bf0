#include "core/dtype.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace troupe::core {
namespace {

/// The value of a code, from the definition of the format, in double.
struct Format {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;

  int codes() const { return 1 << (exponent_bits + mantissa_bits); }  // of one sign

  double value(int code) const {
    const int field = code >> mantissa_bits;
    const double fraction = std::ldexp(code & ((1 << mantissa_bits) - 1), -mantissa_bits);
    const int last_field = (1 << exponent_bits) - 1;
    if (has_infinity && field == last_field) {
      return fraction == 0 ? std::numeric_limits<double>::infinity() : std::nan("");
    }
    if (!has_infinity && code == codes() - 1) return std::nan("");
    const int bias = (1 << (exponent_bits - 1)) - 1;
    return field == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, field - bias);
  }

  /// The code of infinity, or where there is none the code behind the largest number.
  int overflow() const { return has_infinity ? codes() - (1 << mantissa_bits) : codes() - 1; }
};

constexpr Format kF16{5, 10, true};
constexpr Format kBf16{8, 7, true};
constexpr Format kE4m3{4, 3, false};
constexpr Format kE5m2{5, 2, true};

/// Both directions of one format, with codes as int.
struct Conversion {
  const char* name;
  Format format;
  float (*widen)(int);
  int (*narrow)(float);

  friend std::ostream& operator<<(std::ostream& out, const Conversion& of) { return out << of.name; }
};

const Conversion kConversions[] = {
    {"f16", kF16, [](int c) { return f16_to_float(static_cast<std::uint16_t>(c)); },
     [](float x) -> int { return float_to_f16(x); }},
    {"bf16", kBf16, [](int c) { return bf16_to_float(static_cast<std::uint16_t>(c)); },
     [](float x) -> int { return float_to_bf16(x); }},
    {"f8_e4m3", kE4m3, [](int c) { return f8_e4m3_to_float(static_cast<std::uint8_t>(c)); },
     [](float x) -> int { return float_to_f8_e4m3(x); }},
    {"f8_e5m2", kE5m2, [](int c) { return f8_e5m2_to_float(static_cast<std::uint8_t>(c)); },
     [](float x) -> int { return float_to_f8_e5m2(x); }},
};

class NarrowFloat : public testing::TestWithParam<Conversion> {};

bool is_quiet(float x) {
  return (std::bit_cast<std::uint32_t>(x) & 0x0040'0000U) != 0;
}

TEST_P(NarrowFloat, WidensEveryCodeExactly) {
  const auto& [name, format, widen, narrow] = GetParam();

  for (int code = 0; code < format.codes(); ++code) {
    const double expected = format.value(code);
    const float positive = widen(code);
    const float negative = widen(code + format.codes());

    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(positive) && is_quiet(positive)) << code;
      ASSERT_TRUE(std::isnan(negative) && is_quiet(negative) && std::signbit(negative)) << code;
    } else {
      ASSERT_EQ(positive, expected) << code;
      ASSERT_EQ(negative, -expected) << code;
      ASSERT_EQ(std::signbit(negative), true) << code;
    }
  }
}

TEST_P(NarrowFloat, ComesBackFromEveryCode) {
  const auto& [name, format, widen, narrow] = GetParam();

  for (int code = 0; code < 2 * format.codes(); ++code) {
    const float value = widen(code);

    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(widen(narrow(value)))) << code;
    } else {
      ASSERT_EQ(narrow(value), code);
    }
  }
}

TEST_P(NarrowFloat, RoundsBetweenAllNeighboursToNearestEven) {
  const auto& [name, format, widen, narrow] = GetParam();

  for (int code = 0; code + 1 < format.overflow(); ++code) {
    const auto low = static_cast<float>(format.value(code));
    const auto high = static_cast<float>(format.value(code + 1));
    const auto middle = static_cast<float>((format.value(code) + format.value(code + 1)) / 2);
    const int even = code % 2 == 0 ? code : code + 1;

    ASSERT_EQ(static_cast<double>(middle), (format.value(code) + format.value(code + 1)) / 2);
    ASSERT_EQ(narrow(middle), even);
    ASSERT_EQ(narrow(-middle), even + format.codes());
    ASSERT_EQ(narrow(std::nextafter(middle, low)), code);
    ASSERT_EQ(narrow(std::nextafter(middle, high)), code + 1);
    ASSERT_EQ(narrow(std::nextafter(low, high)), code);
    ASSERT_EQ(narrow(std::nextafter(high, low)), code + 1);
  }
}

TEST_P(NarrowFloat, OverflowsFromHalfwayAboveTheLargestNumber) {
  const auto& [name, format, widen, narrow] = GetParam();
  const int largest = format.overflow() - 1;
  const double step = format.value(largest) - format.value(largest - 1);
  const auto halfway = static_cast<float>(format.value(largest) + step / 2);
  // The tie goes to the even code: e4m3's largest code is even, the others' are odd.
  const int tie = largest % 2 == 0 ? largest : format.overflow();

  EXPECT_EQ(narrow(std::nextafter(halfway, 0.0F)), largest);
  EXPECT_EQ(narrow(halfway), tie);
  EXPECT_EQ(narrow(std::nextafter(halfway, std::numeric_limits<float>::infinity())), format.overflow());
  EXPECT_EQ(narrow(std::numeric_limits<float>::max()), format.overflow());
  EXPECT_EQ(narrow(std::numeric_limits<float>::infinity()), format.overflow());
  EXPECT_EQ(narrow(-std::numeric_limits<float>::infinity()), format.overflow() + format.codes());
}

TEST_P(NarrowFloat, KeepsNanAndTheSignOfZero) {
  const auto& [name, format, widen, narrow] = GetParam();
  const auto signalling = std::bit_cast<float>(0x7f80'0001U);

  EXPECT_TRUE(std::isnan(widen(narrow(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isnan(widen(narrow(signalling))));
  EXPECT_EQ(narrow(0.0F), 0);
  EXPECT_EQ(narrow(-0.0F), format.codes());
  EXPECT_EQ(narrow(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(narrow(-std::numeric_limits<float>::denorm_min()), format.codes());
}

TEST_P(NarrowFloat, GivesTheNearestCodeForFloatsOfEveryExponent) {
  const auto& [name, format, widen, narrow] = GetParam();
  constexpr std::uint32_t kStride = 65'537;  // odd, so that all exponents and many mantissas are met

  for (std::uint32_t bits = 0; bits < 0x7f80'0000U; bits += kStride) {
    const auto value = std::bit_cast<float>(bits);
    const int code = narrow(value);
    if (code == format.overflow()) continue;
    const double error = std::abs(format.value(code) - value);

    if (code > 0) {
      ASSERT_LE(error, std::abs(format.value(code - 1) - value)) << bits;
    }
    if (code + 1 < format.overflow()) {
      ASSERT_LE(error, std::abs(format.value(code + 1) - value)) << bits;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllFormats, NarrowFloat, testing::ValuesIn(kConversions),
                         testing::PrintToStringParamName());

TEST(DType, KnownConstantsOfTheFormats) {
  EXPECT_EQ(f16_to_float(0x7bff), 65504.0F);
  EXPECT_EQ(f16_to_float(0x0001), 0x1p-24F);
  EXPECT_EQ(float_to_f16(65520.0F), 0x7c00);
  EXPECT_EQ(float_to_bf16(1.0F), 0x3f80);
  EXPECT_EQ(bf16_to_float(0x0001), 0x1p-133F);
  EXPECT_EQ(f8_e4m3_to_float(0x7e), 448.0F);
  EXPECT_EQ(float_to_f8_e4m3(464.0F), 0x7e);
  EXPECT_EQ(float_to_f8_e4m3(465.0F), 0x7f);
  EXPECT_EQ(f8_e4m3_to_float(0x01), 0x1p-9F);
  EXPECT_EQ(f8_e5m2_to_float(0x7b), 57344.0F);
  EXPECT_EQ(float_to_f8_e5m2(61440.0F), 0x7c);
}

TEST(DType, NamesComeBackAndUnknownOnesAreRefused) {
  for (int i = 0; i <= static_cast<int>(DType::boolean); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(name_of(dtype)).value(), dtype);
  }

  const auto unknown = dtype_from_name("float32");

  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, Errc::invalid_argument);
  EXPECT_NE(unknown.error().message.find("'float32'"), std::string::npos);
}

TEST(DType, SizesAndKinds) {
  EXPECT_EQ(size_of(DType::f64), 8U);
  EXPECT_EQ(size_of(DType::f32), 4U);
  EXPECT_EQ(size_of(DType::bf16), 2U);
  EXPECT_EQ(size_of(DType::f8_e5m2), 1U);
  EXPECT_EQ(size_of(DType::u64), 8U);
  EXPECT_EQ(size_of(DType::boolean), 1U);
  EXPECT_TRUE(is_floating(DType::f8_e5m2));
  EXPECT_FALSE(is_floating(DType::i64));
}

}  // namespace
}  // namespace troupe::core
