#pragma once

#include <cstdint>

#include "core/program/program.hpp"

namespace troupe::core {

/// The collectives of one step by purpose, and how many of them may run while the trainer computes forward or
/// backward: there is a unit's forward or backward between the point after which they may start and the first
/// point that needs them, or needs what follows them on their stream.
struct OverlapCounts {
  std::int64_t gathers = 0;      ///< of parameters
  std::int64_t reductions = 0;   ///< of gradients: reduce_scatter, or an exchange along an axis
  std::int64_t all_reduces = 0;  ///< of gradients: all_reduce, or the gather that follows an exchange
  std::int64_t hidden_gathers = 0;
  std::int64_t hidden_reductions = 0;
  std::int64_t hidden_all_reduces = 0;

  friend bool operator==(const OverlapCounts&, const OverlapCounts&) = default;
};

OverlapCounts overlap_of(const Program& program);

}  // namespace troupe::core
