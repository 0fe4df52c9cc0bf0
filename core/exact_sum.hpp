#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <type_traits>

namespace troupe::core {

/// The exact sum of squares of fp32 values. Neither the order of the values nor their distribution over ranks
/// changes a bit of it.
///
/// The sum is a fixed-point number: limb i weighs 2^(32*i - 298), and 2^-298 is the square of the smallest
/// denormal. After accumulate() every limb is below 2^32, so 2^31 such sums may be added limb by limb as
/// plain int64, in any order, for example by a collective over all members of this struct as i64. There is
/// room above the largest square for 2^86 values.
struct ExactSquareSum {
  static constexpr int kLimbs = 20;

  std::array<std::int64_t, kLimbs> limbs{};
  std::int64_t nonfinite = 0;  ///< values that are NaN or Inf, not included in the sum

  void accumulate(std::span<const float> values) noexcept;
  /// Adds limb by limb, as a collective does.
  void add(const ExactSquareSum& other) noexcept;
  /// The sum, rounded once, to nearest even.
  double to_double() const noexcept;

  friend bool operator==(const ExactSquareSum&, const ExactSquareSum&) = default;
};

static_assert(std::is_trivially_copyable_v<ExactSquareSum> &&
              sizeof(ExactSquareSum) == (ExactSquareSum::kLimbs + 1) * sizeof(std::int64_t));

/// The exact sum of doubles: like ExactSquareSum, but limb i weighs 2^(32*i - 1074), the smallest denormal's
/// value. In a negative sum the last limb is negative. There is room for 2^31 of the largest values.
struct ExactSum {
  static constexpr int kLimbs = 67;

  std::array<std::int64_t, kLimbs> limbs{};
  // Values that are not finite, not included in the limbs.
  std::int64_t nans = 0;
  std::int64_t infinities = 0;
  std::int64_t negative_infinities = 0;

  void accumulate(double value) noexcept;
  /// The sum, rounded once, to nearest even; NaN and infinities as ordinary addition would give them.
  double to_double() const noexcept;

  friend bool operator==(const ExactSum&, const ExactSum&) = default;
};

static_assert(std::is_trivially_copyable_v<ExactSum> &&
              sizeof(ExactSum) == (ExactSum::kLimbs + 3) * sizeof(std::int64_t));

}  // namespace troupe::core
