#pragma once

#include "core/boxes/sharded_tensor.hpp"
#include "gpu/buffer.hpp"

namespace troupe::actors {

/// A tensor of the trainer's own that is saved and restored with the parameters: a router's bias, an average
/// of weights, the state of a random number generator.
struct TrainerTensor {
  core::ShardedTensor tensor;   ///< this rank's part, and its place in the whole
  gpu::BufferView memory;       ///< row-major; owned by the trainer, which keeps it as long as the session
  core::StackingRule stacking;  ///< how it is stored; empty: unchanged
};

}  // namespace troupe::actors
