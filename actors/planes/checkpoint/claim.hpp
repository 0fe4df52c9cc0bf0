#pragma once

#include <string>

#include "actors/world/storage.hpp"
#include "core/ids.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// An epoch of a job, whose ranks write to a directory of checkpoints.
struct CheckpointWriterEpoch {
  std::string job;
  core::Epoch epoch{};
};

/// S14: from now on no earlier epoch of the job commits here, whose ranks may still be alive where a launcher
/// has lost a node, or where a process was stopped and goes on. Not synced: whoever a power failure ends
/// commits nothing. Errc::stale_epoch if a later epoch has claimed it.
core::Result<void> claim_directory(Storage& storage, const CheckpointWriterEpoch& writer);

/// Errc::stale_epoch if a later epoch of the job has claimed the directory.
core::Result<void> check_claim(Storage& storage, const CheckpointWriterEpoch& writer);

}  // namespace troupe::actors
