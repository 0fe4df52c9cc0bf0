#pragma once

#include <cstdint>
#include <vector>

#include "core/program/trainer_point.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// Passes that follow each other, `times` times, each time of rounds `round_step` further on.
struct PassRun {
  std::vector<UnitPass> passes;
  int times = 1;
  int round_step = 0;

  friend bool operator==(const PassRun&, const PassRun&) = default;
};

std::vector<PassRun> fold(const std::vector<UnitPass>& passes);
std::vector<UnitPass> unfold(const std::vector<PassRun>& runs);

/// That a list goes through every unit in every round: forward, then backward and, of a list that splits it,
/// then weights; and adds to the gradients of a unit in the order of rounds. Errc::invalid_argument names the
/// pass or the unit that does not fit.
Result<void> check_passes(const std::vector<UnitPass>& passes, int units, int rounds);

}  // namespace troupe::core
