#pragma once

#include <span>
#include <vector>

#include "actors/session/options.hpp"
#include "core/program/trainer_point.hpp"

namespace troupe::actors {

/// In the form that plan_training() takes.
inline std::vector<core::UnitPass> unit_passes(std::span<const TrainerPass> passes) {
  std::vector<core::UnitPass> found;
  for (const auto& [kind, round, first, end] : passes) {
    const auto phase = kind == TrainerPass::Kind::forward    ? core::Phase::forward
                       : kind == TrainerPass::Kind::backward ? core::Phase::backward
                                                             : core::Phase::weights;
    found.push_back({phase, round, first, end});
  }
  return found;
}

}  // namespace troupe::actors
