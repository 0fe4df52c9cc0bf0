#pragma once

#include <string>
#include <vector>

#include "apps/troupe/plan/program_inputs.hpp"
#include "core/program/memory.hpp"
#include "core/result.hpp"

namespace troupe::apps {

struct CapacityArguments {
  ProgramArguments program;             ///< its strategy is not looked at
  std::vector<std::string> strategies;  ///< none: all that the mesh allows
  double memory_gib = 80;               ///< of one rank
};

/// What a strategy takes of the rank that needs most, and what that rank sends in a step.
struct Capacity {
  std::string strategy;
  core::ProgramMemory memory;
  std::int64_t sent_bytes = 0;
  bool fits = false;
};

/// One for each strategy.
core::Result<std::vector<Capacity>> capacities(const CapacityArguments& arguments);

/// What `troupe plan capacity` prints.
core::Result<std::string> report_capacity(const CapacityArguments& arguments);

}  // namespace troupe::apps
