#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.hpp"

namespace troupe::actors {

/// What goes wrong, and recovers after a time (ChaosFault::lasts).
enum class ChaosKind : std::uint8_t {
  kill_rank,       ///< a process with a rank, or a spare, dies
  stop_rank,       ///< it is stopped, and goes on later: a ghost, if others have gone on without it
  slow_rank,       ///< it takes 20 times as long to compute
  kill_node,       ///< a host is lost with all on it, and comes back empty
  stop_node,       ///< a host stands still with all on it, and goes on
  kill_launcher,   ///< the launcher of a node other than 0, and its processes; another is started
  kill_leader,     ///< the launcher of node 0, and its processes; another is started on its journal
  cut_link,        ///< between two hosts, both ways
  cut_one_way,     ///< what one host sends does not reach the other
  clock_jump,      ///< the clock of a launcher jumps ahead
  slow_disk,       ///< of checkpoints
  full_disk,       ///< of checkpoints: writes fail
  lying_disk,      ///< of checkpoints: syncs do nothing, and then power fails
  rotten_disk,     ///< of checkpoints: a bit of the newest one flips
  kill_in_commit,  ///< rank 0 dies between two calls by which it commits a save
};
inline constexpr std::size_t kChaosKinds = 15;
std::string_view name_of(ChaosKind kind) noexcept;

/// The phase that the job is in.
enum class ChaosPhase : std::uint8_t {
  starting,    ///< its first processes, until they take steps
  computing,   ///< a step
  deciding,    ///< from the first rank's word on a step until the last has finished it
  saving,      ///< while it computes
  rebuilding,  ///< those that stay form an epoch, or have not been told of one yet
  restarting,  ///< all processes end, or are started again
  joining,     ///< ranks were asked to wait for others, and form an epoch with them
};
inline constexpr std::size_t kChaosPhases = 7;
std::string_view name_of(ChaosPhase phase) noexcept;

struct ChaosFault {
  ChaosKind kind{};
  int target = 0;  ///< a slot, or a host; modulo the number that the job has
  int other = 0;   ///< the second host of a link
  /// From the beginning; or, with a phase, from when the job enters it for the `nth` time, from 0 on.
  std::chrono::microseconds at{};
  std::optional<ChaosPhase> phase{};
  int nth = 0;
  std::chrono::microseconds lasts{};

  friend bool operator==(const ChaosFault&, const ChaosFault&) = default;
};

/// The job that is simulated.
struct ChaosSetup {
  int nodes = 2;
  int ranks = 2;              ///< per node
  int spares = 0;             ///< per node
  int fewest_nodes = 0;       ///< 0: all
  bool node_ranks = true;     ///< launchers are told which node each is
  int last_call_ms = 30'000;  ///< for nodes that may come, once enough are there
  int fewest_ranks = 0;       ///< per node; 0: all
  int max_restarts = 8;
  bool in_place = true;
  bool journal = false;
  bool sharded = false;  ///< the optimizer's state: what a lost rank had is nowhere else in memory
  int steps = 20;
  int save_every = 3;
  int lanes = 8;

  friend bool operator==(const ChaosSetup&, const ChaosSetup&) = default;
};

/// All that a run depends on.
struct ChaosSchedule {
  std::uint64_t seed = 0;  ///< of delays and interleavings
  ChaosSetup setup;
  std::vector<ChaosFault> faults;

  friend bool operator==(const ChaosSchedule&, const ChaosSchedule&) = default;
};

/// One line for each part, for people and for parse_schedule().
std::string to_text(const ChaosSchedule& schedule);
/// Errc::invalid_argument names the line.
core::Result<ChaosSchedule> parse_schedule(std::string_view text);

/// The bounds of what drawn_schedule() draws.
struct ChaosBounds {
  int nodes = 3;
  int ranks = 3;   ///< per node
  int spares = 2;  ///< per node
  int steps = 24;
  int faults = 6;
};

/// Swarm testing: a seed switches kinds of faults on or off, draws a job, and draws faults that leave it
/// recoverable: a launcher of node 0 dies only where there is a journal, and there are enough restarts,
/// except in every sixteenth job.
ChaosSchedule drawn_schedule(std::uint64_t seed, const ChaosBounds& bounds);

}  // namespace troupe::actors
