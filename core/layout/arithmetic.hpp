#pragma once

#include <cstdint>

namespace troupe::core {

/// The smallest multiple of `divisor` that is at least `value`; value >= 0, divisor > 0.
constexpr std::int64_t round_up(std::int64_t value, std::int64_t divisor) {
  return (value + divisor - 1) / divisor * divisor;
}

}  // namespace troupe::core
