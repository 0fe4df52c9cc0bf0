#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/plan/placement.hpp"
#include "core/result.hpp"

namespace troupe::apps {

struct LoadBench {
  std::uint64_t bytes = std::uint64_t{384}
                        << 20;  ///< of the state: a third each of parameters and two moments
  std::vector<int> ranks{2, 4};
  int repeats = 5;
  std::string directory;  ///< for the checkpoint; empty: the system's temporary directory
};

/// Medians of restore() on rank 0, every hash checked: which ends when all ranks have read.
struct LoadTime {
  int ranks = 0;
  core::Strategy strategy{};
  bool cached = false;          ///< the system has the files in memory
  double read_seconds = 0;      ///< each rank reads what it needs
  double exchange_seconds = 0;  ///< each shard is read once and goes to the others
};

/// Forks the ranks, so the process must not have threads yet. Both ways take turns.
core::Result<std::vector<LoadTime>> measure_loads(const LoadBench& bench);

}  // namespace troupe::apps
