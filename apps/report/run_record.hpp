#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/result.hpp"

namespace troupe::apps {

/// What a run is: the first line of its record, and another where it was started again, perhaps with other
/// settings.
struct RunDescription {
  std::string name;        ///< for people, for example "gpt on the King James Bible"
  std::string started_at;  ///< ISO 8601, by the caller's clock
  int ranks = 1;
  std::int64_t steps = 0;  ///< the number of steps it will take
  /// Its settings, in the order in which they are shown.
  std::vector<std::pair<std::string, std::string>> configuration;
  double started_unix_seconds = 0;  ///< started_at for machines; 0: unknown
};

/// One step, as rank 0 sees it. Communication is the time in which collectives ran; the exposed part is the
/// time the step waited for them with nothing else to do.
struct StepRecord {
  std::int64_t step = 0;
  double seconds_since_start = 0;             ///< of the run, however often it was restarted
  double loss = 0;                            ///< NaN if there was nothing to learn
  std::optional<std::int64_t> target_tokens;  ///< that the loss is a mean over, if it is one over tokens
  std::optional<double> evaluation_loss;      ///< on steps that evaluated
  double tokens_per_second = 0;               ///< of the whole job, whether they are targets or not
  double step_seconds = 0;
  double compute_seconds = 0;
  double communication_seconds = 0;
  double exposed_communication_seconds = 0;
  double optimizer_seconds = 0;   ///< the step waited while the optimizer ran, and no communication did
  double other_wait_seconds = 0;  ///< the step waited for anything else: other ranks, the runtime itself
  double gradient_norm = 0;
  double learning_rate = 0;
  /// The model's operations per second, as a fraction of the devices' assumed peak.
  std::optional<double> model_flop_utilisation;
  bool committed = true;  ///< false: the step was refused (NaN, Inf, no target) and changed no parameter
};

/// An event of the run: a start, a restart, a lost rank.
struct RunEvent {
  std::int64_t step = 0;
  double seconds_since_start = 0;
  std::string kind;  ///< one word: "start", "restart", "failure", "end", ...
  std::string text;
};

/// Text that the model wrote.
struct RunSample {
  std::int64_t step = 0;
  std::string prompt;
  std::string text;
};

/// Where the tokens of all ranks went in the steps up to this one, since the last such line or the beginning.
struct ExpertLoadRecord {
  struct Layer {
    std::int64_t layer = 0;
    std::vector<std::int64_t> chosen;   ///< by expert: how often tokens chose it
    std::vector<std::int64_t> dropped;  ///< by expert: for how many of these it had no room
  };
  std::int64_t step = 0;
  std::vector<Layer> layers;  ///< those with experts
};

/// A pipeline's step, as it ran.
struct RunPipeline {
  struct Pass {
    std::string name;  ///< as from core::short_name()
    double start_ms = 0;
    double end_ms = 0;
  };
  std::int64_t step = 0;
  std::string schedule;
  double bubble_share = 0;       ///< fraction of all stages' time in which they ran no pass
  std::optional<double> theory;  ///< the same for passes that all take as long as their mean
  std::vector<std::vector<Pass>> stages;
};

/// What rank 0 sent in a step, by the axis along which its ranks are arranged.
struct RunTraffic {
  struct Axis {
    std::string name;
    std::int64_t launches = 0;
    std::int64_t bytes = 0;
  };
  std::int64_t step = 0;
  std::vector<Axis> axes;
};

/// Everything known about a run. Steps are in order; for a step that was repeated after a restart, the last
/// one stays.
struct RunRecord {
  RunDescription description;
  std::vector<StepRecord> steps;
  std::vector<RunEvent> events;
  std::vector<RunSample> samples;
  std::vector<ExpertLoadRecord> expert_loads;  ///< in order, as steps
  std::optional<RunPipeline> pipeline;         ///< the last one
  std::optional<RunTraffic> traffic;           ///< as above
};

/// How long this record's run has lasted at `unix_seconds` of the wall clock: the starting time for the clock
/// of a process that continues the record. Never before what the record contains, whatever happened to the
/// wall clock meanwhile.
double seconds_since_start(const RunRecord& record, double unix_seconds);

/// Makes room for a new record: "run.jsonl" becomes the first of "run.1.jsonl", "run.2.jsonl", ... that is
/// not there. Returns that path; empty if there was no record.
core::Result<std::filesystem::path> set_record_aside(const std::filesystem::path& path);

/// Writes a record during the run: JSON lines, each flushed, so that what happened before a crash is
/// preserved.
class RunWriter {
 public:
  /// Begins a new record in place of an old one, or, if `append` is set and a record exists, continues it.
  static core::Result<RunWriter> open(const std::filesystem::path& path, const RunDescription& description,
                                      bool append = false);

  core::Result<void> write(const RunDescription& description);
  core::Result<void> write(const StepRecord& step);
  core::Result<void> write(const RunEvent& event);
  core::Result<void> write(const RunSample& sample);
  core::Result<void> write(const ExpertLoadRecord& load);
  core::Result<void> write(const RunPipeline& pipeline);
  core::Result<void> write(const RunTraffic& traffic);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  RunWriter(std::filesystem::path path, std::FILE* file) : path_(std::move(path)), file_(file) {}
  core::Result<void> write_line(std::string line);

  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
};

/// Reads a record. A last line without its end is left by a crash, and is skipped; any other line that cannot
/// be parsed is Errc::corrupt with its number.
core::Result<RunRecord> read_run(const std::filesystem::path& path);

}  // namespace troupe::apps
