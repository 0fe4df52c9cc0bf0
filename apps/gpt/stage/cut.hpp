#pragma once

#include <cstddef>
#include <vector>

#include "apps/gpt/model/activations.hpp"
#include "apps/gpt/model/config.hpp"
#include "apps/gpt/model/model_part.hpp"
#include "apps/gpt/model/parameters.hpp"
#include "core/result.hpp"
#include "core/schedule/pipeline_schedule.hpp"

namespace troupe::apps::gpt {

/// How the ranks of a pipeline share the model and the work.
struct PipelineOptions {
  core::ScheduleKind schedule = core::ScheduleKind::one_f_one_b;
  int chunks = 1;  ///< of layers per stage; more than one only in interleaved schedules
};

/// The part of the model that one stage has: one part per chunk, in the order of forward.
struct StageCut {
  int stages = 1;
  int stage = 0;
  std::vector<ModelPart> parts;

  bool is_first() const { return stage == 0; }
  bool is_last() const { return stage == stages - 1; }
  int chunks() const { return static_cast<int>(parts.size()); }
};

/// Layers are assigned to the places of the pipeline in order, the same number to each; if they do not divide
/// evenly, the first places have one more. Errc::invalid_argument if a place would have none.
core::Result<StageCut> cut_model(const ModelConfig& config, PipelineOptions options, int stages, int stage);

/// The only stage, which has all layers.
StageCut uncut(const ModelConfig& config);

/// The parameters of a part, which are contiguous in the whole table.
struct TableRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};
TableRange parameters_of(const ModelConfig& config, const ParameterTable& table, ModelPart part);

}  // namespace troupe::apps::gpt
