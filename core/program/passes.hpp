#pragma once

#include <cstdint>
#include <vector>

#include "core/program/trainer_point.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// Consecutive passes, repeated `times` times, each time with rounds advanced by `round_step`.
struct PassRun {
  std::vector<UnitPass> passes;
  int times = 1;
  int round_step = 0;

  friend bool operator==(const PassRun&, const PassRun&) = default;
};

std::vector<PassRun> fold(const std::vector<UnitPass>& passes);
std::vector<UnitPass> unfold(const std::vector<PassRun>& runs);

/// Checks that a list processes every unit in every round: forward, then backward and, in a list that splits
/// it, then weights; and that it adds to a unit's gradients in the order of rounds. Errc::invalid_argument
/// names the pass or the unit that does not conform.
Result<void> check_passes(const std::vector<UnitPass>& passes, int units, int rounds);

}  // namespace troupe::core
