#pragma once

#include <cstddef>
#include <vector>

#include "actors/session/context.hpp"
#include "core/result.hpp"
#include "core/state/strictness.hpp"

namespace troupe::actors {

/// The keys of the trainers' own tensors on all ranks.
struct TensorKeys {
  /// Ranks that follow one another and have the same keys.
  struct Run {
    std::size_t set = 0;
    std::size_t ranks = 0;
  };
  std::vector<core::KeySet> sets;
  std::vector<Run> runs;  ///< from rank 0 to the last

  core::KeyRequests requests() const;
};

/// Tells all ranks the keys of the others' own tensors, and whether the parts form
/// whole tensors, and those of the parameters whole parameters whose names no other part of the model has:
/// otherwise Errc::mismatch on all of them. Called by all ranks while they join.
core::Result<TensorKeys> agree_on_tensors(const SessionContext& context);

}  // namespace troupe::actors
