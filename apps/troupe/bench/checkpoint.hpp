#pragma once

#include <cstdint>
#include <string>

#include "core/result.hpp"

namespace troupe::apps {

struct CheckpointBench {
  std::uint64_t bytes = std::uint64_t{768}
                        << 20;  ///< of the state: a third each of parameters and two moments
  std::uint64_t staging_bytes = std::uint64_t{256} << 20;
  double layer_milliseconds = 0;  ///< of one of 16 layers' forward; backward takes twice as long
  int repeats = 5;
  std::string directory;  ///< for checkpoints and plain files; empty: the system's temporary directory
};

/// Medians of `repeats` saves, after a first one that warms up; all in one run, in turn.
struct CheckpointTime {
  std::uint64_t bytes = 0;
  double stall_seconds = 0;            ///< how much longer the steps take in which a save is staged
  double first_stall_seconds = 0;      ///< of the first save
  double step_seconds = 0;             ///< a step without a save
  double memcpy_seconds = 0;           ///< one thread copies as many bytes
  double durable_seconds = 0;          ///< from save() to the commit
  double plain_write_seconds = 0;      ///< one thread writes as many bytes to one file, then fsync
  double load_seconds = 0;             ///< restore(), with every hash checked
  double plain_read_seconds = 0;       ///< one thread reads as many bytes of one file
  std::uint64_t peak_extra_bytes = 0;  ///< of the process, beyond one that never saves
  std::uint64_t budget_bytes = 0;
};

/// One rank saves and loads on the host device. Forks, so the process must not have threads yet.
core::Result<CheckpointTime> measure_checkpoints(const CheckpointBench& bench);

}  // namespace troupe::apps
