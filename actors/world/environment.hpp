#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "core/ids.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// What stays of a process's place where ranks change.
struct ProcessSlot {
  int number = 0;       ///< among the processes of the job
  int of_host = 0;      ///< among those of this host
  int ranks_of_host{};  ///< the most that this host has at any time
};

/// What a launcher tells a process about its place in the job.
struct JobEnvironment {
  std::string launcher = "none";  ///< the source: "troupe", "torchrun", another engine's name, or "none"
  core::Rank rank{0};
  core::WorldSize world{1};
  int local_rank = 0;
  int local_world = 1;  ///< ranks of this host
  /// If a launcher keeps this process while ranks change; otherwise it is known by its rank.
  std::optional<ProcessSlot> slot;
  bool has_own_gpus = false;  ///< the launcher shows each rank GPUs that it shows no other
  std::string job = "local";  ///< letters, digits, '-' and '_'
  core::Epoch epoch{1};       ///< increases with every restart of the job
  std::string control_host = "127.0.0.1";
  std::uint16_t control_port = 0;  ///< 0 with one rank: nothing listens
  std::string token;               ///< secret shared by the job's processes; may be empty on one host
  std::string directory;           ///< for logs and reports; may be empty
};

/// The slot, which without such a launcher is the rank's place.
ProcessSlot slot_of(const JobEnvironment& environment);

/// Whether ranks of one host must share the GPUs, of which each of them sees this many.
bool ranks_share_gpus(const JobEnvironment& environment, int visible_gpus);

/// Looks up a variable; empty when it is not set.
using Variables = std::function<std::optional<std::string>(const char* name)>;

/// The environment of this process.
Variables process_variables();

/// Whether `troupe launch` has started this process without a rank, to stand by for one (--spares).
bool is_spare(const Variables& variables);

/// How many GPUs this process would see, found without a call of CUDA: as many as CUDA_VISIBLE_DEVICES names
/// if it is set, otherwise the devices of the driver.
int visible_gpus(const Variables& variables);

/// Reads the variables of TROUPE_* and torchrun, or those of the engine that started this process; one rank
/// if none is set. Errc::invalid_argument names the variable that is missing or cannot be parsed; it is also
/// for a spare, which has no place.
core::Result<JobEnvironment> detect_environment(const Variables& variables);

}  // namespace troupe::actors
