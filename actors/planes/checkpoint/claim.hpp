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

/// S14: from now on no earlier epoch of the job commits here, although its ranks may still be alive: a
/// launcher may have lost their node, or they were stopped and now go on. Not synced: ranks that a power
/// failure ends commit nothing. Errc::stale_epoch if a later epoch has claimed the directory.
core::Result<void> claim_directory(Storage& storage, const CheckpointWriterEpoch& writer);

/// Errc::stale_epoch if a later epoch of the job has claimed the directory.
core::Result<void> check_claim(Storage& storage, const CheckpointWriterEpoch& writer);

}  // namespace troupe::actors
