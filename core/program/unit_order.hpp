#pragma once

#include <vector>

#include "core/result.hpp"

namespace troupe::core {

/// In which order a step uses the units of a program, each of them once in forward and once in backward.
struct UnitOrder {
  std::vector<int> forward;   ///< empty: from 0 up
  std::vector<int> backward;  ///< empty: forward from its end

  bool empty() const { return forward.empty() && backward.empty(); }
  friend bool operator==(const UnitOrder&, const UnitOrder&) = default;
};

/// The same order with both lists written out; one that is as if nothing were given becomes empty, so that
/// equal orders are equal. Errc::invalid_argument names the unit that a list lacks, has twice, or that is
/// none of `units`.
Result<UnitOrder> normalised(UnitOrder order, int units);

}  // namespace troupe::core
