#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "apps/gpt/cuda/cuda_expert_activations.hpp"
#include "apps/gpt/kernels/element.cuh"
#include "apps/gpt/model/activations.hpp"
#include "apps/gpt/model/model_part.hpp"

namespace troupe::apps::gpt {

// B batch, T length, H heads, K heads with keys of their own, D head size, N = B*T rows, C width, F
// feed_forward, V vocabulary.

/// As Carver, but in bytes: pieces of several types, each aligned to 256 bytes, which suits kernels and
/// cuBLAS.
class ByteCarver {
 public:
  explicit ByteCarver(std::byte* base) : base_(base) {}

  template <class T>
  T* take(std::size_t rows, std::size_t columns = 1) {
    auto* piece = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    std::size_t bytes = 0;
    if (__builtin_mul_overflow(rows, columns, &bytes) || __builtin_mul_overflow(bytes, sizeof(T), &bytes) ||
        __builtin_add_overflow(bytes, kAlign - 1, &bytes) ||
        __builtin_add_overflow(used_, bytes / kAlign * kAlign, &used_)) {
      used_ = std::numeric_limits<std::size_t>::max() / 2;
    }
    return piece;
  }

  std::size_t bytes() const { return used_; }

 private:
  static constexpr std::size_t kAlign = 256;
  std::byte* base_;
  std::size_t used_ = 0;
};

template <class E>
struct CudaNormActivations {
  float* scale;  // (N)
  float* mean;   // (N), LayerNorm only
  E* output;     // (N, C)
};

/// As HeadNormActivations.
template <class E>
struct CudaHeadNormActivations {
  E* input;      // (N, H D) or (N, K D)
  float* scale;  // (N, H) or (N, K)
};

template <class E>
struct CudaBlockActivations {
  E* input;  // (N, C)
  CudaNormActivations<E> attention_norm;
  CudaHeadNormActivations<E> query_norm, key_norm;  // with query_key_norm only
  E* query;                                         // (N, H D), rotated
  E* key;                                           // (N, K D), rotated
  E* value;                                         // (N, K D)
  float* log_sum;                                   // (B, H, T)
  E* attention;                                     // (N, H D)
  E* middle;                                        // (N, C)
  CudaNormActivations<E> mlp_norm;
  E* gate;                           // (N, F), SwiGLU only
  E* up;                             // (N, F)
  E* hidden;                         // (N, F)
  CudaExpertActivations<E> experts;  // instead of the three above, if the layer has experts
};

/// Gradients in flight; all blocks share them.
template <class E>
struct CudaGradientScratch {
  E* residual;      // (N, C)
  E* normed;        // (N, C)
  E* query;         // (N, H D)
  E* key;           // (N, K D)
  E* value;         // (N, K D)
  E* attention;     // (N, H D)
  float* delta;     // (B, H, T)
  E* gate;          // (N, F), SwiGLU only
  E* up;            // (N, F)
  E* hidden;        // (N, F)
  float* partials;  // sums of groups of rows
  CudaExpertScratch<E> experts;
};

/// What the host sends with a microbatch.
struct CudaTokens {
  std::int32_t* tokens;         // (N)
  std::int32_t* targets;        // (N)
  std::int32_t* order;          // (N), see cuda::EmbeddingOrder
  std::int32_t* segments;       // (segments_at_most + 1)
  std::int32_t* kinds;          // (N), the distinct tokens
  std::int32_t* first_segment;  // (N + 1)
};

/// For a microbatch in a part of the model's layers.
template <class E>
struct CudaActivations {
  std::vector<CudaBlockActivations<E>> blocks;  // as those of Activations
  E* output;                                    // (N, C)
  // Only if the part ends the model:
  CudaNormActivations<E> final_norm;
  E* logits;          // (N, V), then their gradients
  float* log_sum;     // (N)
  float* row_losses;  // (N)
};

/// What all passes use, whichever part they belong to.
template <class E>
struct CudaShared {
  double* losses;                    // (kMostLosses)
  float* next_logits;                // (V)
  float* cosine;                     // (context, D/2)
  float* sine;                       // (context, D/2)
  CudaGradientScratch<E> gradients;  // except residual, which each pass has its own
};

/// At most this many losses may be waiting to be taken.
inline constexpr std::size_t kMostLosses = 64;

/// Elements of the rows that stages send to each other; in a model with experts one double per layer follows
/// them.
template <class E>
std::size_t stream_elements(const ModelConfig& config, std::size_t rows) {
  const std::size_t routes = config.experts.count > 0 ? config.layers * sizeof(double) : 0;
  return rows * config.width + routes / sizeof(E);
}

/// The maximum number of segments of the embedding's gradient.
std::size_t segments_at_most(const ModelConfig& config, BatchShape shape);

/// Number of a microbatch's integers, which are contiguous, and their places.
std::size_t token_words(const ModelConfig& config, BatchShape shape);
CudaTokens place_tokens(std::int32_t* words, const ModelConfig& config, BatchShape shape);

template <class E>
CudaActivations<E> carve_part(ByteCarver& carver, const ModelConfig& config, BatchShape shape, Keep keep,
                              ModelPart part, const ActivationExtents& extents = {});
template <class E>
CudaShared<E> carve_shared(ByteCarver& carver, const ModelConfig& config, BatchShape shape);

}  // namespace troupe::apps::gpt
