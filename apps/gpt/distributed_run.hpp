#pragma once

#include <cstdint>

#include "apps/gpt/run_options.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// How a run ended.
enum class RunEnd : std::uint8_t {
  finished,
  preempted,      ///< asked to leave, it saved and left; to be started again later
  no_checkpoint,  ///< there is none that it can begin from; it has said why
};

/// Trains to the end, as a rank of a job. SIGUSR2 saves after the step that runs, SIGTERM saves and leaves
/// once there are steps; with a directory of checkpoints only. Rank 0 shows progress, evaluates, writes a
/// sample, the record (run.jsonl) and the report (report.html); with tracing every rank adds to trace.json.
core::Result<RunEnd> run_distributed(const RunOptions& options);

}  // namespace troupe::apps::gpt
