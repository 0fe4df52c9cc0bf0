#pragma once

#include <memory>

#include "apps/gpt/model/device_group.hpp"
#include "apps/gpt/model/share.hpp"
#include "apps/gpt/stage/cut.hpp"
#include "apps/gpt/stage/models.hpp"
#include "apps/gpt/stage/trainable_stage.hpp"
#include "gpu/device.hpp"

namespace troupe::apps::gpt {

/// A stage on a GPU; the shape says what is kept, and a whole model is the stage that has all layers.
/// Everything is enqueued on `compute`, a stream of `device`; both must outlive the stage. What is sent,
/// received or read is ready for later work on that stream. Equal inputs give equal bits on GPUs of one kind,
/// whatever passes came before. If the shape has a share of the layers, or a part of each
/// sequence, `groups` are those of the ranks that share them; they must outlive the stage and are not used
/// before the first pass. Errc::invalid_argument for an unsupported shape, Errc::unavailable as from
/// create_host_stage(), Errc::out_of_memory says what was requested.
core::Result<std::unique_ptr<TrainableStage>> create_cuda_stage(const ModelConfig& config,
                                                                const StageCut& cut, const StageShape& shape,
                                                                ModelOptions options, gpu::Device& device,
                                                                gpu::StreamView compute,
                                                                DeviceGroups groups = {});

/// Bytes of device memory that it takes.
std::size_t cuda_stage_bytes(const ModelConfig& config, const StageCut& cut, const StageShape& shape,
                             core::DType dtype);

/// Returns the errors of create_cuda_stage() about the model before anything is allocated.
core::Result<void> check_cuda_model(const ModelConfig& config, BatchShape shape, core::DType dtype,
                                    const TensorShare& share = {});

}  // namespace troupe::apps::gpt
