#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/engine/job.hpp"
#include "core/checkpoint/save_plan.hpp"
#include "core/ids.hpp"

namespace troupe::actors {

/// What is kept of a parameter from step to step.
enum class StateKind : std::uint8_t {
  parameter,     ///< in the parameter's own dtype
  master,        ///< fp32, only of parameters that are narrower
  first_moment,  ///< fp32: Adam's first moment, or SGD's momentum
  second_moment,
};

/// The key of a stored tensor: "<name>", "optimizer.state.fp32_param.<name>",
/// "optimizer.state.exp_avg.<name>", "optimizer.state.exp_avg_sq.<name>",
/// "optimizer.state.momentum_buffer.<name>".
std::string state_key(StateKind kind, OptimizerKind optimizer, const std::string& parameter);

/// What the job keeps of the parameters of a buffer.
std::vector<StateKind> state_kinds(const Job& job, std::uint32_t buffer);

/// The stretch of a bucket, as a range of its buffer, whose optimizer state this rank holds.
core::ElementRange state_range(const Job& job, std::uint32_t bucket, core::Rank rank);

/// Where a piece of a stored tensor is in a rank's memory: elements from the beginning of
/// DataPlane::state(kind, bucket).
struct StatePiece {
  StateKind kind = StateKind::parameter;
  std::uint32_t bucket = 0;
  std::int64_t first = 0;
};

/// All that a rank could save, and where it is. Buckets come in the order of forward, which is the order in
/// which they are updated.
struct RankState {
  core::SaveStructure structure;
  std::vector<StatePiece> pieces;  ///< of structure.pieces

  /// The bucket of every piece.
  std::vector<std::uint32_t> buckets() const;
};

RankState state_of(const Job& job, core::Rank rank);

}  // namespace troupe::actors
