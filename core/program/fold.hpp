#pragma once

#include <vector>

#include "core/program/program.hpp"

namespace troupe::core {

/// The same entries in the same order; those that repeat for consecutive units are written once.
std::vector<ProgramRun> fold(const std::vector<ProgramEntry>& entries);

/// An entry of a list of passes, and its round.
struct PlacedEntry {
  ProgramEntry entry;
  int round = 0;

  friend bool operator==(const PlacedEntry&, const PlacedEntry&) = default;
};

/// The same entries; those that repeat for consecutive rounds are written once.
std::vector<ProgramSegment> fold(const std::vector<PlacedEntry>& entries);

/// Consecutive units that are alike are written once.
std::vector<UnitRun> fold(const std::vector<Unit>& units);

}  // namespace troupe::core
