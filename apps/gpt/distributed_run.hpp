#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "apps/gpt/distributed_trainer.hpp"
#include "apps/gpt/pretrained/export_model.hpp"
#include "apps/gpt/sample.hpp"

namespace troupe::apps::gpt {

/// One run of the trainer as a rank of a job.
struct DistributedRunOptions {
  DistributedTrainerOptions trainer;
  std::string text;            ///< path of the corpus
  TextCodec* codec = nullptr;  ///< how the model writes text; null: as bytes
  std::int64_t steps = 0;
  std::int64_t evaluate_every = 100;
  std::size_t evaluation_batches = 16;
  std::string prompt;
  std::size_t sample_bytes = 0;
  SamplingOptions sampling;
  ExportOptions export_to;  ///< at the end, by rank 0; without a directory nothing is exported
  std::string collectives = "automatic";
  bool register_memory = false;  ///< as actors::ProcessWorldOptions takes it
  /// As gpu::open_device() takes it; "cuda" is the GPU of the rank's number on its node.
  std::string device = "host";
  /// Operations per second that a GPU is taken to do at its best, for the utilisation; 0: by its compute
  /// capability, where that is known.
  double peak_flops = 0;
  /// This many steps are traced, when the session traces: the first that this process takes, also after a
  /// resume.
  std::int64_t trace_steps = 0;
  /// Directory of checkpoints; empty: none are saved.
  std::string checkpoints;
  std::int64_t save_every = 0;  ///< steps; 0: only at the end, and when asked by a signal
  /// Directory of local copies, see actors::ProcessWorldOptions; empty: none are kept.
  std::string local_checkpoints;
  std::int64_t local_every = 0;  ///< steps
  /// "auto": from the newest whole checkpoint of the directory, if there is one; "never": anew (restarts of
  /// this run go on all the same); else a checkpoint, or a directory of them, to begin from.
  std::string resume = "auto";
  std::string output;  ///< folder for the record, the report and the trace; empty: none is written
  /// What the report shows as the run's settings.
  std::vector<std::pair<std::string, std::string>> configuration;
};

/// How a run ended.
enum class RunEnd : std::uint8_t {
  finished,
  preempted,      ///< asked to leave, it saved and left; to be started again later
  no_checkpoint,  ///< there is none that it can begin from; it has said why
};

/// Trains to the end. SIGUSR2 saves after the step that runs, SIGTERM saves and leaves once there are
/// steps; with a directory of checkpoints only. Rank 0 shows progress, evaluates, writes a sample, the record
/// (run.jsonl) and the report (report.html); with tracing every rank adds to trace.json.
core::Result<RunEnd> run_distributed(const DistributedRunOptions& options);

}  // namespace troupe::apps::gpt
