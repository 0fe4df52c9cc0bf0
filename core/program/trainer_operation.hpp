#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.hpp"
#include "core/plan/mesh.hpp"
#include "core/plan/terms.hpp"
#include "core/program/counts.hpp"
#include "core/program/trainer_point.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// A collective that the trainer posts itself, as part of a unit's forward or backward, in every round: of
/// tensor parallelism, of the dispatch of tokens to experts. All members of its group come to it before the
/// point has ended.
struct TrainerOperation {
  CollectiveKind kind = CollectiveKind::all_reduce;
  GroupKind group = GroupKind::tp;
  DType dtype = DType::f32;
  /// What each member puts in; in a broadcast, what the one does whose values they are. `bounded`: what it
  /// puts in at most, after an operation that told all members how much it is.
  Counts counts;
  TrainerPoint point{Phase::forward, 0};  ///< forward or backward of a unit

  friend bool operator==(const TrainerOperation&, const TrainerOperation&) = default;
};
/// "all_to_all on ep in 'forward of unit 3'"
std::string describe(const TrainerOperation& operation);
/// The same, for a later unit.
TrainerOperation shifted(TrainerOperation operation, int units);

/// `operations`, then the same `unit_step` units further on, `times` times in all.
struct OperationRun {
  std::vector<TrainerOperation> operations;
  int times = 1;
  int unit_step = 0;

  friend bool operator==(const OperationRun&, const OperationRun&) = default;
};

/// Within a round: first those of forward by the numbers of units, then those of backward; those of one point
/// keep the order given. Lists with the same operations fold to the same runs.
std::vector<OperationRun> fold(std::vector<TrainerOperation> operations);
std::vector<TrainerOperation> unfold(const std::vector<OperationRun>& runs);
/// For people, and for ranks to compare: one line for each, with "x8 unit+1:" before those that repeat.
std::vector<std::string> lines(const std::vector<OperationRun>& runs);

/// PR-5 of one program: operations of a round belong to forward or backward of one of its units, and a
/// bounded one comes after one of fixed counts that gave integers to all members of its group.
/// Errc::invalid_argument names the operation that is not.
Result<void> check_operations(const std::vector<TrainerOperation>& operations, const StepClock& clock,
                              int units);

}  // namespace troupe::core
