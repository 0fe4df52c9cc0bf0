#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "apps/gpt/distributed_trainer.hpp"
#include "apps/gpt/sample.hpp"

namespace troupe::apps::gpt {

/// One run of the trainer as a rank of a job.
struct DistributedRunOptions {
  DistributedTrainerOptions trainer;
  std::string text;  ///< path of the corpus
  std::int64_t steps = 0;
  std::int64_t evaluate_every = 100;
  std::size_t evaluation_batches = 16;
  std::string prompt;
  std::size_t sample_bytes = 0;
  SamplingOptions sampling;
  std::string collectives = "shared_memory";
  std::int64_t trace_steps = 0;  ///< so many steps at the beginning are traced, when the session traces
  std::string output;            ///< folder for the record, the report and the trace; empty: none is written
  /// What the report shows as the run's settings.
  std::vector<std::pair<std::string, std::string>> configuration;
};

/// Trains to the end. Rank 0 shows progress, evaluates, writes a sample, the record (run.jsonl) and the
/// report (report.html); with tracing every rank adds to trace.json.
core::Result<void> run_distributed(const DistributedRunOptions& options);

}  // namespace troupe::apps::gpt
