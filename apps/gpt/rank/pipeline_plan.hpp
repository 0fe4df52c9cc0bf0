#pragma once

#include "apps/gpt/options/run_options.hpp"
#include "apps/gpt/rank/tied_embedding.hpp"
#include "apps/gpt/stage/cut.hpp"
#include "apps/gpt/stage/trainable_stage.hpp"
#include "core/ids.hpp"
#include "core/schedule/pipeline_schedule.hpp"
#include "gpu/device.hpp"

namespace troupe::apps::gpt {

/// A rank's place in the pipelines of a job.
struct PipelinePlace {
  core::Rank rank{};
  core::WorldSize world{1};
};

/// What cannot be trained in pipeline stages, and what to do instead. The same on all ranks.
core::Result<void> check_pipeline(const TrainerOptions& options, core::WorldSize world);

/// Whether backward is in two halves, with the weights' half later.
bool splits_backward(const TrainerOptions& options);

// For options that pass the check.
core::Result<StageCut> cut_of(const TrainerOptions& options, PipelinePlace place);
/// For the microbatches of the rank's lanes; a rank that has all layers plays these without a schedule.
core::Result<core::PipelineSchedule> schedule_of(const TrainerOptions& options, PipelinePlace place);
/// Memory of this rank besides what its session takes.
core::Result<std::size_t> pipeline_bytes(const TrainerOptions& options, PipelinePlace place,
                                         gpu::DeviceKind device);
StageShape stage_shape(const TrainerOptions& options, PipelinePlace place,
                       const core::PipelineSchedule& schedule, int stage);
/// Shape of the output layer, or of the rank's part of it.
HeadShape head_shape(const TrainerOptions& options);

}  // namespace troupe::apps::gpt
