#include "core/random.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

#include "core/hash.hpp"

namespace troupe::core {
namespace {

/// Highest power first.
double polynomial(std::span<const double> coefficients, double x) {
  double value = 0;
  for (const double coefficient : coefficients) value = value * x + coefficient;
  return value;
}

/// Natural logarithm of a normal positive number, to about 1e-15: x = 2^e * m with m in [sqrt(1/2), sqrt(2)),
/// and log m = 2 artanh z with z = (m - 1) / (m + 1), |z| < 0.1716.
double logarithm(double x) {
  constexpr std::uint64_t kMantissa = (std::uint64_t{1} << 52) - 1;
  constexpr std::uint64_t kOne = std::uint64_t{1023} << 52;
  const auto bits = std::bit_cast<std::uint64_t>(x);
  auto exponent = static_cast<int>(bits >> 52) - 1023;
  auto mantissa = std::bit_cast<double>((bits & kMantissa) | kOne);
  if (mantissa > 1.4142135623730951) {
    mantissa /= 2;
    ++exponent;
  }
  const double z = (mantissa - 1) / (mantissa + 1);
  constexpr std::array kSeries{1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9,
                               1.0 / 7,  1.0 / 5,  1.0 / 3,  1.0};
  return exponent * 0.6931471805599453 + 2 * z * polynomial(kSeries, z * z);
}

}  // namespace

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) noexcept {
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t even = std::uint64_t{0xD251'1F53} * counter[0];
    const std::uint64_t odd = std::uint64_t{0xCD9E'8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(odd >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(odd),
               static_cast<std::uint32_t>(even >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(even)};
    key[0] += 0x9E37'79B9;
    key[1] += 0xBB67'AE85;
  }
  return counter;
}

CounterRandom::CounterRandom(std::uint64_t seed, std::string_view stream, Step step, Lane lane) noexcept {
  const std::uint64_t key = hash64(stream, seed);
  const auto count = static_cast<std::uint64_t>(step.value);
  key_ = {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)};
  counter_ = {0, static_cast<std::uint32_t>(count >> 32) << 16, static_cast<std::uint32_t>(count),
              static_cast<std::uint32_t>(lane.value)};
}

std::uint32_t CounterRandom::bits(std::uint64_t index) const noexcept {
  const std::uint64_t block = index / 4;
  auto counter = counter_;
  counter[0] = static_cast<std::uint32_t>(block);
  counter[1] |= static_cast<std::uint32_t>(block >> 32);
  return philox4x32(counter, key_)[index % 4];
}

std::uint32_t CounterRandom::below(std::uint32_t bound, std::uint64_t index) const noexcept {
  return static_cast<std::uint32_t>((std::uint64_t{bits(index)} * bound) >> 32);
}

float CounterRandom::uniform(std::uint64_t index) const noexcept {
  return static_cast<float>(bits(index) >> 8) * 0x1p-24F;
}

float CounterRandom::normal(std::uint64_t index) const noexcept {
  return static_cast<float>(inverse_normal((bits(index) + 0.5) * 0x1p-32));
}

double inverse_normal(double p) noexcept {
  const double q = p - 0.5;
  if (std::abs(q) <= 0.425) {
    constexpr std::array kAbove{59.109374720, 159.29113202, 50.434271938, 3.3871327179};
    constexpr std::array kBelow{67.187563600, 78.757757664, 17.895169469, 1.0};
    const double r = 0.180625 - q * q;
    return q * polynomial(kAbove, r) / polynomial(kBelow, r);
  }
  const double r = std::sqrt(-logarithm(std::min(p, 1 - p)));
  double tail = 0;
  if (r <= 5) {
    constexpr std::array kAbove{0.17023821103, 1.3067284816, 2.7568153900, 1.4234372777};
    constexpr std::array kBelow{0.12021132975, 0.73700164250, 1.0};
    tail = polynomial(kAbove, r - 1.6) / polynomial(kBelow, r - 1.6);
  } else {
    constexpr std::array kAbove{0.017337203997, 0.42868294337, 3.0812263860, 6.6579051150};
    constexpr std::array kBelow{0.012258202635, 0.24197894225, 1.0};
    tail = polynomial(kAbove, r - 5) / polynomial(kBelow, r - 5);
  }
  return q < 0 ? -tail : tail;
}

}  // namespace troupe::core
