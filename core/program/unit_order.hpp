#pragma once

#include <cstddef>
#include <vector>

#include "core/result.hpp"

namespace troupe::core {

/// The order in which a step uses the units of a program, each once in forward and once in backward.
struct UnitOrder {
  std::vector<int> forward;   ///< empty: ascending from 0
  std::vector<int> backward;  ///< empty: the reverse of forward

  bool empty() const { return forward.empty() && backward.empty(); }
  friend bool operator==(const UnitOrder&, const UnitOrder&) = default;
};

/// The same order with both lists written out; an order equal to the default becomes empty, so that equal
/// orders compare equal. Errc::invalid_argument names the unit that a list lacks or has twice, or one that is
/// not below `units`.
Result<UnitOrder> normalised(UnitOrder order, int units);

/// Records the order in which one forward and one backward use units.
class OrderRecorder {
 public:
  explicit OrderRecorder(int units) : used_(static_cast<std::size_t>(units)) {}

  /// Records the next unit. Errc::invalid_argument if it was already used in the same direction.
  Result<void> uses(int unit);
  void begin_backward() { is_backward_ = true; }
  bool is_backward() const { return is_backward_; }

  /// The units that were used, in order of use, followed by those that were not: in the order of their
  /// numbers, and in backward in the reverse of forward's order.
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
