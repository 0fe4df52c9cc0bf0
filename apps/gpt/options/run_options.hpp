#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/session/options.hpp"
#include "actors/shell/process_world.hpp"
#include "apps/gpt/model/config.hpp"
#include "apps/gpt/model/initial_values.hpp"
#include "apps/gpt/model/schedule.hpp"
#include "apps/gpt/options/loss_average.hpp"
#include "apps/gpt/options/settings.hpp"
#include "apps/gpt/options/tensor_options.hpp"
#include "apps/gpt/pretrained/checkpoint_weights.hpp"
#include "apps/gpt/pretrained/export_model.hpp"
#include "apps/gpt/pretrained/pretrained_model.hpp"
#include "apps/gpt/stage/cut.hpp"
#include "apps/gpt/stage/models.hpp"
#include "apps/gpt/text/data.hpp"
#include "apps/gpt/text/sample.hpp"

namespace troupe::apps::gpt {

/// What is trained, and how.
struct TrainerOptions {
  ModelConfig model;
  ModelOptions arithmetic;
  BatchShape microbatch;
  actors::SessionOptions session;  ///< its lanes and microbatches define the global batch
  LossAverage loss_average = LossAverage::tokens;
  Schedule schedule;
  std::uint64_t seed = 1;
  const InitialValues* initial = nullptr;  ///< null: from the seed; read only by create()
  TensorOptions tensor;
  /// ParameterSpec::gather_dtype of the matrices of layers, except routers.
  std::optional<core::DType> gather_dtype{};
  ModelFiles files{};        ///< kept in checkpoints, for `troupe checkpoint export`
  PipelineOptions pipeline;  ///< used if TrainingOptions::pipeline_parallel is more than 1
  core::Value settings{};    ///< what checkpoints keep of the run's settings; none: nothing
};

/// One run of the trainer.
struct RunOptions {
  TrainerOptions trainer;
  /// Where collectives, devices and checkpoints are; without a directory of checkpoints none are saved.
  actors::ProcessWorldOptions world;
  std::string text;             ///< path of the corpus
  std::string evaluation_text;  ///< of what is evaluated; empty: the end of the corpus
  /// Weights to begin from, instead of those of `origin`, or null. Owned by all copies of these options.
  std::shared_ptr<const CheckpointWeights> weights;
  const PretrainedModel* origin = nullptr;  ///< its tokenizer encodes text; null: tokens are bytes
  std::int64_t steps = 0;
  std::int64_t evaluate_every = 100;
  std::size_t evaluation_batches = 16;
  std::string prompt;
  std::size_t sample_bytes = 0;
  SamplingOptions sampling;
  ExportOptions export_to;  ///< at the end, by rank 0; without a directory nothing is exported
  /// Assumed peak operations per second of a GPU, for the utilisation; 0: from its compute capability, if
  /// known.
  double peak_flops = 0;
  /// This many steps are traced, if the session traces: the first that this process takes, even after a
  /// resume.
  std::int64_t trace_steps = 0;
  std::int64_t save_every = 0;   ///< steps; 0: only at the end, and when requested by a signal
  std::int64_t local_every = 0;  ///< steps between local copies
  /// Where a job goes on with a number of ranks that is not a multiple of the optimizer's instances: uses
  /// more instances, so that each rank keeps more, instead of fewer.
  bool keeps_instances = false;
  /// "auto": from the newest whole checkpoint in the directory, if there is one; "never": from scratch
  /// (restarts of this run still resume); otherwise a checkpoint, or a directory of them, to begin from.
  std::string resume = "auto";
  /// Resume even if settings differ that change the course of training.
  bool force_resume = false;
  Settings settings;   ///< from the options; a run adds what it finds out
  std::string output;  ///< directory for the record, the report and the trace; empty: none is written
  /// What the report shows as the run's settings.
  std::vector<std::pair<std::string, std::string>> configuration;
};

/// The files that its tokens come from.
inline CorpusFiles files_of(const RunOptions& run) {
  const ModelConfig& model = run.trainer.model;
  return {run.text, run.evaluation_text, model.context, model.vocabulary};
}

}  // namespace troupe::apps::gpt
