#pragma once

#include <memory>
#include <string>
#include <vector>

#include "actors/world/engine.hpp"
#include "actors/world/environment.hpp"
#include "actors/world/epochs.hpp"
#include "actors/world/log.hpp"
#include "actors/world/transport/authentication.hpp"
#include "core/ids.hpp"
#include "core/result.hpp"

namespace troupe::gpu {
class FlightRecorder;
}

namespace troupe::actors {

/// The place of another process, for what is the same in all.
core::Result<JobEnvironment> place_of_spare();

/// Waits, for as long as it takes, until the launcher gives this process, a spare, a rank, and changes the
/// environment to its place.
core::Result<void> stand_by(const EpochFiles& files, JobEnvironment& environment);

/// Changes the environment to this process's place in the epoch, which has one for it.
void place_in(const EpochFiles& files, const NextEpoch& next, JobEnvironment& environment);

/// By what the ranks of the job know each other.
core::Result<JobToken> token_of(const JobEnvironment& environment, const EngineFacts& facts);

/// Ranks of one host are spread over its GPUs, round robin. NCCL treats several ranks on one GPU as hosts of
/// their own if it is told so before its first call. CUDA reads its own variables in its first call.
core::Result<std::string> device_of_rank(const std::string& name, const JobEnvironment& environment,
                                         const Logger& log);

/// Where this rank records what it does in the environment's epoch: a file whose path is that of
/// TROUPE_FLIGHT_RECORD, ".", the epoch, "." and the rank. Null without the variable.
core::Result<std::shared_ptr<gpu::FlightRecorder>> open_flight_record(const JobEnvironment& environment);

/// What all ranks of a job call it, and those of no other job that writes at the same time.
std::string owner_name(const JobEnvironment& environment);

/// `directory` with the rank's number for "{rank}", or in a folder with that name.
std::string directory_of_rank(std::string directory, core::Rank rank);
/// The ranks whose directory_of_rank() is there on this host, ascending.
std::vector<core::Rank> ranks_with_directories(const std::string& directory);

}  // namespace troupe::actors
