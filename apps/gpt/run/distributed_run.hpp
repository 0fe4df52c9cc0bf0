#pragma once

#include <cstdint>

#include "apps/gpt/options/run_options.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// How a run ended.
enum class RunEnd : std::uint8_t {
  finished,
  preempted,      ///< was asked to leave, saved and left; should be restarted later
  no_checkpoint,  ///< there is none that it can begin from, or some of another run; the reason was reported
};

/// Trains to the end, as one rank of a job. If there is a directory of checkpoints, SIGUSR2 saves after the
/// current step, and SIGTERM saves and leaves once there are steps. Rank 0 shows progress, evaluates, writes
/// a sample, the record (run.jsonl) and the report (report.html); with tracing every rank contributes to
/// trace.json. If the state after the last step could not be saved, all of this is done, and the Error says
/// so.
core::Result<RunEnd> run_distributed(const RunOptions& options);

}  // namespace troupe::apps::gpt
