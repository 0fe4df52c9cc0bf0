#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/ids.hpp"
#include "core/result.hpp"

namespace troupe::actors {

class RankWorld;

/// Something that happens to a simulated job.
struct JobFault {
  enum class Kind : std::uint8_t {
    kill,   ///< the process of a rank dies
    hang,   ///< its collectives never arrive, while its connections stay
    slow,   ///< its device and links take `factor` times as long, as long as it lives
    join,   ///< another process stands by to join, if the job has fewer than SimulatedJobOptions::ranks
    power,  ///< all processes die; of the checkpoints' disk that is left which was synced, and some of the
            ///< rest
  };
  Kind kind = Kind::kill;
  core::Rank rank{};              ///< in the epoch that it hits; modulo the number of ranks
  std::chrono::nanoseconds at{};  ///< virtual time since the job began
  double factor = 1;

  friend bool operator==(const JobFault&, const JobFault&) = default;
};

/// "kill rank 2 at 0.350 s".
std::string to_string(const JobFault& fault);

struct SimulatedJobOptions {
  int ranks = 2;
  /// When a rank is lost the others go on, as long as there are this many; 0: a process takes its place.
  int fewest_ranks = 0;
  /// The processes that were not hit keep their memory, as with ProcessWorldOptions::stays.
  bool stays = true;
  /// All delays, the order of what happens at once, and what is drawn depend on it, and on nothing else.
  std::uint64_t seed = 0;
  std::vector<JobFault> faults = {};
  /// Further faults of all kinds, at moments up to `drawn_within`.
  int drawn_faults = 0;
  std::chrono::nanoseconds drawn_within = std::chrono::seconds(1);
  /// Virtual; a job that takes longer is stuck.
  std::chrono::nanoseconds time_limit = std::chrono::hours(24);
};

struct SimulatedJobReport {
  /// How the job ended: an Error of a rank's trainer that no other rank's loss explains, Errc::internal if
  /// the job was stuck or the runtime broke an invariant, or Errc::invalid_argument for options that cannot
  /// be.
  core::Result<void> end;
  int epochs = 0;
  std::vector<JobFault> faults;         ///< that have hit the job
  std::vector<std::string> violations;  ///< of invariants (docs/architecture.md)
  std::vector<std::string> log;         ///< faults, epochs, and what the runtime says to people
  std::chrono::nanoseconds virtual_time{};
  std::uint64_t trace_hash = 0;  ///< equal in two runs of one seed
};

/// Runs `train` as the trainer of every rank of a job, in this thread and in virtual time, over the runtime's
/// own state machines, messages, collectives and checkpoints, and does to the job what `options` say. After a
/// loss `train` is called again on the ranks of the next epoch, as after ProcessWorld::form_anew(), until all
/// return success in one epoch. It is the function that a real process calls with its ProcessWorld:
///
///   core::Result<void> train(actors::RankWorld& world);  // joins, recovers or restores, takes steps, leaves
///
/// All ranks have one disk for checkpoints and no other surroundings: what `train` shares between ranks by
/// other means than its session is not lost when one of them dies. Each call runs on a stack of 1 MiB. With a
/// lossless job as the reference, equal results over thousands of seeds show that the trainer survives what
/// its jobs will meet (apps/examples/faults.cpp).
SimulatedJobReport simulate_job(const SimulatedJobOptions& options,
                                const std::function<core::Result<void>(RankWorld& world)>& train);

/// Within `train`: lets virtual time pass, as if this rank computed for so long. Nothing in a real world.
void compute_for(RankWorld& world, std::chrono::nanoseconds duration);

}  // namespace troupe::actors
