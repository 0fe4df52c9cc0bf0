#pragma once

#include <memory>

#include "apps/gpt/cuda/cuda_model.hpp"
#include "apps/gpt/model/device_group.hpp"
#include "apps/gpt/stage/cut.hpp"
#include "apps/gpt/stage/trainable_stage.hpp"
#include "gpu/device.hpp"

namespace troupe::apps::gpt {

/// A stage on a GPU, as described at create_cuda_model(); the shape says what is kept, and a whole model is
/// the stage that has all layers. Passes follow `compute`, a stream of `device`: what is sent, received or
/// read is ready for later work on that stream. If the shape has a share of the layers, or a part of each
/// sequence, `groups` are those of the ranks that share them; they must outlive the stage and are not used
/// before the first pass. Errc::unavailable as from create_host_stage().
core::Result<std::unique_ptr<TrainableStage>> create_cuda_stage(const ModelConfig& config,
                                                                const StageCut& cut, const StageShape& shape,
                                                                CudaModelOptions options, gpu::Device& device,
                                                                gpu::StreamView compute,
                                                                DeviceGroups groups = {});

/// Bytes of device memory that it takes.
std::size_t cuda_stage_bytes(const ModelConfig& config, const StageCut& cut, const StageShape& shape,
                             core::DType dtype);

}  // namespace troupe::apps::gpt
