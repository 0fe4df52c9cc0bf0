#pragma once

#include <cstddef>
#include <vector>

#include "apps/gpt/activations.hpp"
#include "apps/gpt/config.hpp"
#include "apps/gpt/parameters.hpp"
#include "apps/gpt/pipeline/model_part.hpp"
#include "core/result.hpp"
#include "core/schedule/pipeline_schedule.hpp"

namespace troupe::apps::gpt {

/// How the ranks of a pipeline share the model and the work.
struct PipelineOptions {
  core::ScheduleKind schedule = core::ScheduleKind::one_f_one_b;
  int chunks = 1;  ///< of layers per stage; more than one in interleaved schedules only
};

/// What of the model one stage has: a part for each of its chunks, in the order of forward.
struct StageCut {
  int stages = 1;
  int stage = 0;
  std::vector<ModelPart> parts;

  bool is_first() const { return stage == 0; }
  bool is_last() const { return stage == stages - 1; }
  int chunks() const { return static_cast<int>(parts.size()); }
};

/// Layers go to the places of the pipeline in order, to each as many; where they do not divide, the first
/// places have one more. Errc::invalid_argument when a place would have none.
core::Result<StageCut> cut_model(const ModelConfig& config, PipelineOptions options, int stages, int stage);

/// The only stage, which has all layers.
StageCut uncut(const ModelConfig& config);

/// Of the whole table the parameters that are of a part: neighbours.
struct TableRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};
TableRange parameters_of(const ModelConfig& config, const ParameterTable& table, ModelPart part);

}  // namespace troupe::apps::gpt
