#include "core/exact_sum.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <bit>
#include <bitset>
#include <cmath>
#include <limits>
#include <vector>

namespace troupe::core {
namespace {

/// A natural number as bits, with the one operation that the test needs; bit 0 weighs 2^-298.
class BigInteger {
 public:
  void add_square(float value) {
    int exponent = 0;
    const double fraction = std::frexp(std::abs(static_cast<double>(value)), &exponent);
    const auto mantissa = static_cast<std::uint64_t>(std::ldexp(fraction, 24));
    add(mantissa * mantissa, 2 * (exponent - 24) + 298);
  }

  /// Adds integer * 2^shift; a negative shift drops zeros only.
  void add(std::uint64_t integer, int shift) {
    for (; shift < 0; ++shift) integer /= 2;
    bool carry = false;
    for (int i = 0; integer != 0 || carry; ++i, integer /= 2) {
      const bool bit = (integer & 1U) != 0;
      const auto at = static_cast<std::size_t>(shift + i);
      const int sum = int{bits_[at]} + int{bit} + int{carry};
      bits_[at] = sum % 2 != 0;
      carry = sum > 1;
    }
  }

  /// Rounded by long arithmetic: the highest 53 bits, then up when the rest is above half, or half and odd.
  double to_double() const {
    int top = static_cast<int>(bits_.size()) - 1;
    while (top >= 0 && !at(top)) --top;
    double value = 0;
    for (int i = top; i > top - 53; --i) value = 2 * value + (at(i) ? 1 : 0);
    bool below_half = false;
    for (int i = 0; i < top - 53; ++i) below_half |= at(i);
    if (at(top - 53) && (below_half || at(top - 52))) value += 1;
    return std::ldexp(value, top - 52 - 298);
  }

 private:
  bool at(int i) const { return i >= 0 && bits_[static_cast<std::size_t>(i)]; }

  std::bitset<700> bits_;
};

ExactSquareSum sum_of(std::span<const float> values) {
  ExactSquareSum sum;
  sum.accumulate(values);
  return sum;
}

double reference(std::span<const float> values) {
  BigInteger sum;
  for (const float value : values) {
    if (std::isfinite(value)) sum.add_square(value);
  }
  return sum.to_double();
}

rc::Gen<std::vector<float>> any_floats() {
  return rc::gen::container<std::vector<float>>(rc::gen::map(
      rc::gen::arbitrary<std::uint32_t>(), [](std::uint32_t bits) { return std::bit_cast<float>(bits); }));
}

TEST(ExactSquareSum, OfNothingIsZero) {
  EXPECT_EQ(ExactSquareSum{}.to_double(), 0.0);
}

TEST(ExactSquareSum, HoldsTheSmallestAndTheLargestSquares) {
  constexpr float kSmallest = std::numeric_limits<float>::denorm_min();
  constexpr float kLargest = std::numeric_limits<float>::max();

  EXPECT_EQ(sum_of(std::vector{kSmallest}).to_double(), 0x1p-298);
  EXPECT_EQ(sum_of(std::vector{kLargest}).to_double(), static_cast<double>(kLargest) * kLargest);
  EXPECT_EQ(sum_of(std::vector{kLargest, kSmallest}).to_double(),
            reference(std::vector{kLargest, kSmallest}));
}

TEST(ExactSquareSum, CountsNanAndInfApart) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

  const auto sum = sum_of(std::vector{3.0F, kInf, 4.0F, kNan, -kInf});

  EXPECT_EQ(sum.nonfinite, 3);
  EXPECT_EQ(sum.to_double(), 25.0);
}

TEST(ExactSquareSum, RoundsTiesToEven) {
  // 2^52 + 1/2 and 2^52 + 3/2 lie halfway between doubles; one more 2^-298 tips the balance.
  const float big = 0x1p26F;
  const std::vector<float> tie_down{big, 0.5F, 0.5F};
  const std::vector<float> tie_up{big, 1.0F, 0.5F, 0.5F};
  const std::vector<float> above{big, 0.5F, 0.5F, 0x1p-149F};

  EXPECT_EQ(sum_of(tie_down).to_double(), 0x1p52);
  EXPECT_EQ(sum_of(tie_up).to_double(), 0x1p52 + 2);
  EXPECT_EQ(sum_of(above).to_double(), 0x1p52 + 1);
}

TEST(ExactSquareSum, RoundsUpIntoTheNextPowerOfTwo) {
  // (2^24 - 1)^2 = 2^48 - 2^25 + 1; eight more terms fill the mantissa with ones, and the last tips it over.
  std::vector<float> values{0x1.fffffep23F};
  for (int i = 0; i < 8; ++i) values.push_back(0x1p11F);
  values.push_back(0x1p-20F);

  EXPECT_EQ(sum_of(values).to_double(), reference(values));
}

RC_GTEST_PROP(ExactSquareSum, EqualsBigIntegerArithmetic, ()) {
  const auto values = *any_floats();

  RC_ASSERT(sum_of(values).to_double() == reference(values));
}

RC_GTEST_PROP(ExactSquareSum, RoundsCorrectlyWhereManyMagnitudesMeet, (std::uint32_t seed)) {
  std::vector<float> values;
  for (std::uint32_t i = 0; i < 40; ++i) {
    seed = seed * 1664525 + 1013904223;
    values.push_back(std::ldexp(static_cast<float>(seed >> 8), -static_cast<int>(seed % 97)));
  }

  RC_ASSERT(sum_of(values).to_double() == reference(values));
}

RC_GTEST_PROP(ExactSquareSum, IsTheSameForEveryOrderAndPartition, ()) {
  const auto values = *any_floats();
  auto shuffled = values;
  std::reverse(shuffled.begin(), shuffled.end());
  const auto cut = static_cast<std::size_t>(*rc::gen::inRange(0, static_cast<int>(values.size()) + 1));
  const std::span<const float> all(shuffled);

  auto parts = sum_of(all.subspan(cut));
  parts.add(sum_of(all.first(cut)));
  auto continued = sum_of(all.first(cut));
  continued.accumulate(all.subspan(cut));

  RC_ASSERT(sum_of(shuffled) == sum_of(values));
  RC_ASSERT(continued == sum_of(values));
  RC_ASSERT(parts.to_double() == sum_of(values).to_double());
  RC_ASSERT(parts.nonfinite == sum_of(values).nonfinite);
}

TEST(ExactSquareSum, ManyValuesOfOneExponentDoNotOverflow) {
  // The last ones end just below a multiple of 2^18, so that few values are left over beside full tables.
  for (const std::size_t count : {1'000'003, 262'141, 262'142, 262'143, 262'144, 524'287}) {
    const std::vector<float> values(count, 0x1.fffffep127F);  // all mantissa bits set
    BigInteger expected;
    for (std::size_t i = 0; i < values.size(); ++i) expected.add_square(values[i]);

    EXPECT_EQ(sum_of(values).to_double(), expected.to_double()) << count;
  }
}

TEST(ExactSquareSum, TwoToTheThirtyOneFullSumsFit) {
  auto sum = sum_of(std::vector<float>(1000, 0x1.fffffep127F));
  const double one = sum.to_double();

  for (int doubling = 0; doubling < 31; ++doubling) sum.add(ExactSquareSum(sum));

  EXPECT_EQ(sum.to_double(), one * 0x1p31);
}

ExactSum sum_of_doubles(const std::vector<double>& values) {
  ExactSum sum;
  for (const double value : values) sum.accumulate(value);
  return sum;
}

TEST(ExactSum, KeepsWhatAdditionsInAnyOrderWouldLose) {
  const double most = std::numeric_limits<double>::max();
  const double least = std::numeric_limits<double>::denorm_min();

  EXPECT_EQ(sum_of_doubles({}).to_double(), 0);
  EXPECT_EQ(sum_of_doubles({1e300, 1, -1e300, least, -1}).to_double(), least);
  EXPECT_EQ(sum_of_doubles({-most, -least, most}).to_double(), -least);
  EXPECT_EQ(sum_of_doubles({1, 0x1p-53, 0x1p-1000}).to_double(), 1 + 0x1p-52) << "above half rounds up";
  EXPECT_EQ(sum_of_doubles({1, 0x1p-53}).to_double(), 1) << "half rounds to even";
  EXPECT_EQ(sum_of_doubles({most, most, -most}).to_double(), most);
  EXPECT_EQ(sum_of_doubles({-most, -most}).to_double(), -std::numeric_limits<double>::infinity());
}

RC_GTEST_PROP(ExactSum, OfOneValueIsTheValue, (std::uint64_t bits)) {
  const auto value = std::bit_cast<double>(bits);
  const auto sum = sum_of_doubles({value}).to_double();
  const bool same = std::isnan(value) ? std::isnan(sum) : sum == value;
  RC_ASSERT(same);
}

/// Integers times one power of two: their sum is exact in 64 bits.
RC_GTEST_PROP(ExactSum, IsThatOfIntegersInAnyOrder,
              (std::vector<std::int32_t> integers, std::int16_t exponent)) {
  const int power = exponent % 900;
  std::vector<double> values;
  std::int64_t whole = 0;
  for (const auto integer : integers) {
    values.push_back(std::ldexp(integer, power));
    whole += integer;
  }
  const auto half = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  auto sum = sum_of_doubles({half, values.end()});
  const auto other = sum_of_doubles({values.begin(), half});
  for (std::size_t i = 0; i < sum.limbs.size(); ++i) sum.limbs[i] += other.limbs[i];
  RC_ASSERT(sum.to_double() == std::ldexp(static_cast<double>(whole), power));
}

TEST(ExactSum, HasNaNAndInfinitiesAsAdditionsDo) {
  const double infinity = std::numeric_limits<double>::infinity();

  EXPECT_TRUE(std::isnan(sum_of_doubles({1, std::nan("")}).to_double()));
  EXPECT_TRUE(std::isnan(sum_of_doubles({infinity, 1, -infinity}).to_double()));
  EXPECT_EQ(sum_of_doubles({1, infinity}).to_double(), infinity);
  EXPECT_EQ(sum_of_doubles({-infinity, 1e308}).to_double(), -infinity);
}

}  // namespace
}  // namespace troupe::core
