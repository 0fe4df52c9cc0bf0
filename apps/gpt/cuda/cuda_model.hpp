#pragma once

#include <memory>

#include "apps/gpt/model/device_group.hpp"
#include "apps/gpt/model/share.hpp"
#include "apps/gpt/stage/trainable_model.hpp"
#include "gpu/device.hpp"

namespace troupe::apps::gpt {

struct CudaModelOptions {
  core::DType dtype = core::DType::bf16;  ///< of parameters and activations: bf16 or f32
  bool tf32 = false;                      ///< f32 products may round their factors to 10 bits
  Keep keep = Keep::activations;
  TensorShare share{};  ///< of each layer, if a group of ranks shares them
};

/// A whole model on a GPU. Everything is enqueued on `compute`, a
/// stream of `device`; both must outlive the model. Equal inputs give equal bits on GPUs of one kind,
/// whatever passes came before. Errc::invalid_argument for an unsupported shape, Errc::out_of_memory says
/// what was requested. With a share, `group` is that of its members, which compute together; it must outlive
/// the model and is not used before the first pass.
core::Result<std::unique_ptr<TrainableModel>> create_cuda_model(const ModelConfig& config, BatchShape shape,
                                                                CudaModelOptions options, gpu::Device& device,
                                                                gpu::StreamView compute,
                                                                DeviceTensorGroup* group = nullptr);

/// Returns the errors of create_cuda_model() before anything is allocated.
core::Result<void> check_cuda_model(const ModelConfig& config, BatchShape shape, core::DType dtype,
                                    const TensorShare& share = {});

/// Bytes of device memory that its activations take.
std::size_t cuda_activation_bytes(const ModelConfig& config, BatchShape shape,
                                  const CudaModelOptions& options);

}  // namespace troupe::apps::gpt
