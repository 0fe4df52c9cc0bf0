#pragma once

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

}  // namespace troupe::actors
