#pragma once

#include <cstddef>
#include <memory>

#include "apps/gpt/model/host_engine.hpp"
#include "apps/gpt/stage/stage_core.hpp"
#include "apps/gpt/stage/trainable_stage.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// What a stage on the host takes from the machine's memory.
std::size_t host_stage_bytes(const ModelConfig& config, const StageCut& cut, const StageShape& shape);

/// The plain reference, which computes immediately. Errc::out_of_memory if the activations do not fit in this
/// machine's memory; Errc::unavailable for split backwards of recomputed activations. The groups match the
/// shape's share and sequences; they must outlive the stage and are not used before the first pass.
core::Result<std::unique_ptr<TrainableStage>> create_host_stage(const ModelConfig& config,
                                                                const StageCut& cut, const StageShape& shape,
                                                                StageGroups groups = {});

/// The machine's total memory, whether free or not.
std::size_t physical_memory_bytes();

}  // namespace troupe::apps::gpt
