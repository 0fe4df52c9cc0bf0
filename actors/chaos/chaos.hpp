#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "actors/chaos/monitor.hpp"
#include "actors/chaos/planted.hpp"
#include "actors/chaos/schedule.hpp"

namespace troupe::actors {

/// What a simulated job came to.
struct ChaosReport {
  std::vector<std::string> violations;
  ChaosCoverage coverage;
  std::uint64_t trace_hash = 0;  ///< equal in two runs of one schedule
  std::uint64_t events = 0;
  std::chrono::nanoseconds virtual_time{};
  int generations = 0;
  int restarts = 0;
  int exit_code = -1;
  std::string verdict;
  std::vector<std::string> log;  ///< the faults and the phase that each has met, or all that happens
};

/// Runs a whole job under a schedule, in this thread: first while its faults happen, then without any, until
/// it ends.
/// `tells`: what launchers and processes come to is in the report's log.
ChaosReport run_chaos(const ChaosSchedule& schedule, PlantedBug planted = PlantedBug::none,
                      bool tells = false);

/// A schedule with fewer faults, and a smaller job, that still violates the same invariant; the given one if
/// it violates none. `planted` is in all runs.
ChaosSchedule shrunk(const ChaosSchedule& schedule, PlantedBug planted = PlantedBug::none);

}  // namespace troupe::actors
