#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "apps/gpt/cuda/cuda_activations.hpp"
#include "apps/gpt/cuda/cuda_attention.hpp"
#include "apps/gpt/cuda/cuda_tensor.hpp"
#include "apps/gpt/stage/cut.hpp"
#include "apps/gpt/stage/trainable_stage.hpp"

namespace troupe::apps::gpt {

// N rows, C width.

/// What a microbatch keeps; a slot is as large as the largest chunk.
template <class E>
struct CudaSlot {
  std::vector<CudaActivations<E>> chunks;  ///< one of them is in use
  E* gradient = nullptr;                   ///< (N, C)
  gpu::BufferView kept;                    ///< for the weights' half of backward, if it is split
  std::int32_t* words = nullptr;           ///< what the host sends, if a chunk reads it
};

template <class E>
struct CudaPlaces {
  CudaShared<E> shared;
  std::vector<CudaSlot<E>> slots;
  E* input = nullptr;                            ///< one more than there are slots
  std::optional<CudaTensorParallel> tensor;      ///< without its group
  std::optional<CudaContextParallel> sequences;  ///< as above
  float* all_logits = nullptr;                   ///< of the next token, if ranks share the vocabulary
};

/// Where everything of a stage is in the carver's memory. The configuration is that of the share.
template <class E>
CudaPlaces<E> place_stage(ByteCarver& carver, const ModelConfig& config, const StageCut& cut,
                          const StageShape& shape);

/// Whether a part of the model reads tokens or targets.
inline bool reads_text(const ModelConfig& config, ModelPart part) {
  return part.has_begin() || part.has_end(config);
}

}  // namespace troupe::apps::gpt
