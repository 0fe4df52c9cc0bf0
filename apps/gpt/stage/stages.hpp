#pragma once

#include <cstddef>
#include <memory>

#include "apps/gpt/model/device_group.hpp"
#include "apps/gpt/stage/cut.hpp"
#include "apps/gpt/stage/models.hpp"
#include "apps/gpt/stage/trainable_stage.hpp"
#include "gpu/device.hpp"

namespace troupe::apps::gpt {

/// Where a stage computes, and with which ranks. All of it must outlive the stage.
struct StagePlace {
  gpu::Device& device;
  gpu::StreamView compute = nullptr;  ///< a stream of the device, which the host does not use
  StageGroups groups{};               ///< on the host: those that match the shape's share and sequences
  DeviceGroups device_groups{};       ///< as above on a GPU
};

/// The stage for a device: the host's reference, or the GPU's. Errors as theirs.
core::Result<std::unique_ptr<TrainableStage>> create_stage(const ModelConfig& config, const StageCut& cut,
                                                           const StageShape& shape, ModelOptions options,
                                                           StagePlace place);
/// Device memory that create_stage() takes.
std::size_t stage_bytes(const ModelConfig& config, const StageCut& cut, const StageShape& shape,
                        ModelOptions options, gpu::DeviceKind device);

}  // namespace troupe::apps::gpt
