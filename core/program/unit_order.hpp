#pragma once

#include <cstddef>
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

/// Writes down the order in which one forward and one backward use units.
class OrderRecorder {
 public:
  explicit OrderRecorder(int units) : used_(static_cast<std::size_t>(units)) {}

  /// The next unit in use. Errc::invalid_argument for one that was used before in the same direction.
  Result<void> uses(int unit);
  void begin_backward() { is_backward_ = true; }
  bool is_backward() const { return is_backward_; }

  /// What was used in its order, and behind it the units that were not: by their numbers, and in backward the
  /// way that forward came.
  UnitOrder order() const;

 private:
  struct Used {
    bool forward = false;
    bool backward = false;
  };

  UnitOrder order_;
  std::vector<Used> used_;
  bool is_backward_ = false;
};

}  // namespace troupe::core
