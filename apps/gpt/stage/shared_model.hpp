#pragma once

#include <cstddef>
#include <memory>

#include "apps/gpt/model/share.hpp"
#include "apps/gpt/stage/models.hpp"
#include "apps/gpt/stage/stages.hpp"

namespace troupe::apps::gpt {

/// A model whose layers a group of ranks shares, and this rank's part of it.
struct SharedModel {
  const ModelConfig& config;  ///< of the whole model
  BatchShape shape;
  ModelOptions options{};
  TensorShare share;
};

/// Returns the errors of create_shared_model() before anything is allocated: Errc::invalid_argument names
/// what does not divide, Errc::unavailable what cannot be cut.
core::Result<void> check_shared_model(const SharedModel& model, gpu::DeviceKind device);

/// The rank's share for a device: the host's reference, or the GPU's.
core::Result<std::unique_ptr<TrainableModel>> create_shared_model(const SharedModel& model, StagePlace place);
/// Device memory that create_shared_model() takes.
std::size_t shared_model_bytes(const SharedModel& model, gpu::DeviceKind device);

}  // namespace troupe::apps::gpt
