#pragma once

#include <span>
#include <vector>

#include "core/plan/lanes.hpp"

namespace troupe::gpu {

/// A part of a tree sum that one kernel runs: the sum of a subtree.
struct TreePass {
  std::vector<int> slots;             ///< numbers from the count of the sum's slots on: earlier passes' sums
  std::vector<core::TreeStep> steps;  ///< over places in `slots`; the sum ends up in place 0
};

/// Divides a tree sum of `slots` slots, each of which is a source at most once, into passes over at most
/// `most` (at least 2) slots. Every addition has the operands that it has in `steps`, so the bits are the
/// same. The last pass leaves what `steps` leave in slot 0.
std::vector<TreePass> passes_of(int slots, std::span<const core::TreeStep> steps, std::size_t most);

}  // namespace troupe::gpu
