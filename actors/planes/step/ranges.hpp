#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/element_range.hpp"

namespace troupe::actors {

inline std::size_t elements(core::ElementRange range) {
  return static_cast<std::size_t>(range.size());
}

inline core::ElementRange moved(core::ElementRange range, std::int64_t by) {
  return {range.start + by, range.end + by};
}

/// What is in both; empty where nothing is.
inline core::ElementRange overlap(core::ElementRange a, core::ElementRange b) {
  const auto start = std::max(a.start, b.start);
  return {start, std::max(start, std::min(a.end, b.end))};
}

}  // namespace troupe::actors
