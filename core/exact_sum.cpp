#include "core/exact_sum.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>

#include "core/exact_sum_parts.hpp"

namespace troupe::core {
namespace {

constexpr int kLimbBits = 32;
constexpr std::int64_t kLimbMask = 0xffff'ffff;
constexpr int kLowestSquareExponent = -298;
constexpr int kLowestExponent = -1074;
constexpr std::size_t kExponents = 256;
constexpr std::size_t kTables = 4;
/// The square of a 24-bit mantissa has 48 bits, so a table entry takes this many without overflow.
constexpr std::size_t kValuesPerTable = std::size_t{1} << 16;

/// Sums of squared integer mantissas by exponent field. Neighbours go to different tables, because adding to
/// the same entry twice in a row waits for the store.
using SquareTables = std::array<std::array<std::uint64_t, kExponents>, kTables>;

/// Returns 1 for NaN and Inf; their contribution to entry 255 is never read.
std::int64_t add_square(float value, std::array<std::uint64_t, kExponents>& table) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t field = (bits >> 23) & 0xff;
  const std::uint64_t mantissa = (bits & 0x7f'ffff) | (std::uint32_t{field != 0} << 23);
  table[field] += mantissa * mantissa;
  return field == 255 ? 1 : 0;
}

template <std::size_t kLimbs>
void carry(std::array<std::int64_t, kLimbs>& limbs) noexcept {
  for (std::size_t i = 0; i + 1 < limbs.size(); ++i) {
    limbs[i + 1] += limbs[i] >> kLimbBits;
    limbs[i] &= kLimbMask;
  }
}

/// Adds sign * sum * 2^position, where position is counted from the lowest bit. Each call adds less than 2^33
/// to a limb.
template <std::size_t kLimbs>
void add_at(std::uint64_t sum, int position, std::array<std::int64_t, kLimbs>& limbs,
            std::int64_t sign = 1) noexcept {
  const auto limb = static_cast<std::size_t>(position / kLimbBits);
  const int shift = position % kLimbBits;
  const std::uint64_t low = (sum & kLimbMask) << shift;
  const std::uint64_t high = (sum >> kLimbBits) << shift;
  limbs[limb] += sign * static_cast<std::int64_t>(low & kLimbMask);
  limbs[limb + 1] += sign * static_cast<std::int64_t>((low >> kLimbBits) + (high & kLimbMask));
  limbs[limb + 2] += sign * static_cast<std::int64_t>(high >> kLimbBits);
}

void flush(const SquareTables& tables, std::array<std::int64_t, ExactSquareSum::kLimbs>& limbs) noexcept {
  for (const auto& table : tables) {
    for (std::size_t field = 0; field < kExponents - 1; ++field) {
      // Denormals (field 0) have the exponent of field 1, without the hidden bit.
      const int position = 2 * (std::max(static_cast<int>(field), 1) - 1);
      if (table[field] != 0) add_at(table[field], position, limbs);
    }
  }
  carry(limbs);
}

/// The digits' number, rounded to nearest even. Digit 0 weighs 2^lowest_exponent, and all are below 2^32.
template <std::size_t kLimbs>
double rounded(const std::array<std::int64_t, kLimbs>& digits, int lowest_exponent) noexcept {
  std::size_t top = digits.size();
  while (top > 0 && digits[top - 1] == 0) --top;
  if (top == 0) return 0;

  // The highest 64 bits of the number, then one sticky bit for all below them.
  const auto digit = [&](std::size_t below_top) {
    return below_top < top ? static_cast<std::uint64_t>(digits[top - 1 - below_top]) : 0;
  };
  const int zeros = std::countl_zero(digit(0)) - kLimbBits;
  std::uint64_t head = (digit(0) << kLimbBits) | digit(1);
  bool sticky = false;
  if (zeros >= 0) {
    head = (head << zeros) | ((digit(2) << zeros) >> kLimbBits);
    sticky = ((digit(2) << zeros) & kLimbMask) != 0;
  }
  for (std::size_t i = 3; i < top; ++i) sticky |= digit(i) != 0;

  constexpr int kDropped = 64 - 53;
  constexpr std::uint64_t kHalf = 1U << (kDropped - 1);
  const std::uint64_t rest = head & ((1U << kDropped) - 1);
  std::uint64_t mantissa = head >> kDropped;
  if (rest > kHalf || (rest == kHalf && (sticky || (mantissa & 1U) != 0))) ++mantissa;
  const int exponent = lowest_exponent + kLimbBits * static_cast<int>(top) - zeros - 53;
  return std::ldexp(static_cast<double>(mantissa), exponent);
}

}  // namespace

void ExactSquareSum::accumulate(std::span<const float> values) noexcept {
  carry(limbs);
  while (!values.empty()) {
    const auto part = values.first(std::min(values.size(), kTables * kValuesPerTable));
    values = values.subspan(part.size());
    SquareTables tables{};
    std::size_t i = 0;
    for (; i + kTables <= part.size(); i += kTables) {
      for (std::size_t t = 0; t < kTables; ++t) nonfinite += add_square(part[i + t], tables[t]);
    }
    // One for each table: more would not fit.
    for (std::size_t t = 0; i < part.size(); ++i, ++t) nonfinite += add_square(part[i], tables[t]);
    flush(tables, limbs);
  }
}

void add_squares_of_place(Wide count, int field, ExactSquareSum& sum) noexcept {
  carry(sum.limbs);
  const int position = 2 * (field - 1);
  add_at(static_cast<std::uint64_t>(count), position, sum.limbs);
  const auto high = static_cast<std::uint64_t>(count >> 64);
  if (high != 0) add_at(high, position + 64, sum.limbs);
  carry(sum.limbs);
}

void ExactSquareSum::add(const ExactSquareSum& other) noexcept {
  for (std::size_t i = 0; i < limbs.size(); ++i) limbs[i] += other.limbs[i];
  nonfinite += other.nonfinite;
}

double ExactSquareSum::to_double() const noexcept {
  auto digits = limbs;
  carry(digits);
  return rounded(digits, kLowestSquareExponent);
}

void ExactSum::accumulate(double value) noexcept {
  if (std::isnan(value)) {
    nans += 1;
    return;
  }
  if (std::isinf(value)) {
    (value > 0 ? infinities : negative_infinities) += 1;
    return;
  }
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const auto field = static_cast<int>(bits >> 52 & 0x7ff);
  const std::uint64_t mantissa = (bits & 0xf'ffff'ffff'ffff) | (std::uint64_t{field != 0} << 52);
  // Denormals (field 0) have the exponent of field 1, without the hidden bit.
  add_at(mantissa, std::max(field, 1) - 1, limbs, std::signbit(value) ? -1 : 1);
  carry(limbs);
}

double ExactSum::to_double() const noexcept {
  if (nans != 0 || (infinities != 0 && negative_infinities != 0)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (infinities != 0) return std::numeric_limits<double>::infinity();
  if (negative_infinities != 0) return -std::numeric_limits<double>::infinity();
  auto digits = limbs;
  carry(digits);
  const bool negative = digits.back() < 0;
  if (negative) {
    for (auto& digit : digits) digit = -digit;
    carry(digits);
  }
  const double magnitude = rounded(digits, kLowestExponent);
  return negative ? -magnitude : magnitude;
}

}  // namespace troupe::core
