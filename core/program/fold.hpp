#pragma once

#include <vector>

#include "core/program/program.hpp"

namespace troupe::core {

/// The same entries in the same order, with those that repeat for unit after unit written once.
std::vector<ProgramRun> fold(const std::vector<ProgramEntry>& entries);

/// Units that are alike and follow each other, written once.
std::vector<UnitRun> fold(const std::vector<Unit>& units);

}  // namespace troupe::core
