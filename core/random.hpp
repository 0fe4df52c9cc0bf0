#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "core/ids.hpp"

namespace troupe::core {

/// Philox 4x32 with 10 rounds (Salmon, Moraes, Dror, Shaw, SC 2011): 128 random bits as a pure function of a
/// counter and a key.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) noexcept;

/// Random numbers that depend on (seed, stream, step, lane, index) alone, never on ranks, order of use or the
/// machine's mathematics library. A stream is a purpose, for example "data" or a parameter's name.
class CounterRandom {
 public:
  /// `step` is below 2^48.
  CounterRandom(std::uint64_t seed, std::string_view stream, Step step = {}, Lane lane = {}) noexcept;

  /// 32 random bits. `index` is below 2^50, here and below.
  std::uint32_t bits(std::uint64_t index) const noexcept;
  /// In [0, bound), for bound > 0. The bias is below bound / 2^32.
  std::uint32_t below(std::uint32_t bound, std::uint64_t index) const noexcept;
  /// In [0, 1), a multiple of 2^-24.
  float uniform(std::uint64_t index) const noexcept;
  /// Mean 0, deviation 1.
  float normal(std::uint64_t index) const noexcept;

 private:
  std::array<std::uint32_t, 2> key_;
  std::array<std::uint32_t, 4> counter_;
};

/// The value that a standard normal variable stays below with probability p in (0, 1); relative error about
/// 1e-7 (algorithm AS 241, Wichura 1988). Computed without the mathematics library, so the bits are the same
/// everywhere.
double inverse_normal(double p) noexcept;

}  // namespace troupe::core
