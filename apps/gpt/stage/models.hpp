#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "apps/gpt/model/device_group.hpp"
#include "apps/gpt/stage/cut.hpp"
#include "apps/gpt/stage/trainable_stage.hpp"
#include "gpu/device.hpp"

namespace troupe::apps::gpt {

struct ModelOptions {
  core::DType dtype = core::DType::f32;  ///< of parameters and activations; bf16 on GPUs only
  bool tf32 = false;                     ///< GPUs only: f32 products may round their factors to 10 bits
  Keep keep = Keep::activations;
};

/// Refuses, before anything is allocated, what create_stage() would refuse of a model.
core::Result<void> check_model(const ModelConfig& config, BatchShape shape, ModelOptions options,
                               gpu::DeviceKind device);
/// The same for the layers that a group of ranks shares: Errc::invalid_argument names what does not divide,
/// Errc::unavailable what cannot be cut.
core::Result<void> check_shared_model(const ModelConfig& config, BatchShape shape, ModelOptions options,
                                      const TensorShare& share, gpu::DeviceKind device);

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

/// Memory that training takes on a device.
struct MemoryNeed {
  std::size_t parameters = 0;   ///< in the model's dtype
  std::size_t gradients = 0;    ///< fp32
  std::size_t optimizer = 0;    ///< fp32 master values, if parameters are narrower, and AdamW's moments
  std::size_t activations = 0;  ///< of one microbatch

  std::size_t total() const { return parameters + gradients + optimizer + activations; }
};

/// For one rank alone; for a rank of a session, core::memory_of() its program gives the first three.
MemoryNeed memory_need(const ModelConfig& config, BatchShape shape, ModelOptions options,
                       gpu::DeviceKind device);

/// Errc::out_of_memory, with what takes how much and what to do, if it is more than the device has.
core::Result<void> check_memory(const MemoryNeed& need, std::size_t device_bytes);

/// Floating-point operations of forward and backward per token: 6 per parameter of a matrix multiplied by,
/// and 6 * layers * T * H * D for causal attention, half of what attention to all positions takes (PaLM,
/// Chowdhery et al. 2022, appendix B, counts the whole).
double training_flops_per_token(const ModelConfig& config, std::size_t length);

/// NVIDIA's figure for dense bf16 matrices on the tensor cores of a compute capability, in operations per
/// second; 0 if not known here. 9.0 is taken to be an H100 SXM or H200: 989e12.
double peak_flops(int major, int minor);

}  // namespace troupe::apps::gpt
