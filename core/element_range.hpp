#pragma once

#include <cstdint>

namespace troupe::core {

/// Half-open, in elements.
struct ElementRange {
  std::int64_t start = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - start; }
  friend bool operator==(const ElementRange&, const ElementRange&) = default;
};

}  // namespace troupe::core
