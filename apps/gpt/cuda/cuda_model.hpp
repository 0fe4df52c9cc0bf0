#pragma once

#include <memory>

#include "apps/gpt/trainable_model.hpp"
#include "gpu/device.hpp"

namespace troupe::apps::gpt {

struct CudaModelOptions {
  core::DType dtype = core::DType::bf16;  ///< of parameters and activations: bf16 or f32
  bool tf32 = false;                      ///< f32 products may round their factors to 10 bits
  Keep keep = Keep::activations;
};

/// The function of BasicModel (apps/gpt/model.hpp) on a GPU. Everything is enqueued on `compute`, a stream of
/// `device`; both must outlive the model. Equal inputs give equal bits on GPUs of one kind, whatever passes
/// came before. Errc::invalid_argument for a shape that is not supported, Errc::out_of_memory says what was
/// asked for.
core::Result<std::unique_ptr<TrainableModel>> create_cuda_model(const ModelConfig& config, BatchShape shape,
                                                                CudaModelOptions options, gpu::Device& device,
                                                                gpu::StreamView compute);

/// What create_cuda_model() refuses before it allocates anything.
core::Result<void> check_cuda_model(const ModelConfig& config, BatchShape shape, core::DType dtype);

/// Bytes of device memory that its activations take.
std::size_t cuda_activation_bytes(const ModelConfig& config, BatchShape shape, core::DType dtype,
                                  Keep keep = Keep::activations);

}  // namespace troupe::apps::gpt
