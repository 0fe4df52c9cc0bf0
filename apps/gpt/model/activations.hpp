#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "apps/gpt/model/config.hpp"
#include "apps/gpt/model/expert_activations.hpp"
#include "apps/gpt/model/model_part.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

// B batch, T length, N = B*T rows, C width, H heads, K heads with keys of their own, D head size,
// F feed_forward, V vocabulary.

/// What one norm saves for backward.
template <class T>
struct NormActivations {
  T* scale;   // (N)
  T* mean;    // (N), LayerNorm only
  T* output;  // (N, C)
};

/// Queries or keys before the norm of each head, and what the norm saves.
template <class T>
struct HeadNormActivations {
  T* input;  // (N, H D) or (N, K D)
  T* scale;  // (N, H) or (N, K)
};

template <class T>
struct BlockActivations {
  T* input;  // (N, C) the residual stream at the block's input
  NormActivations<T> attention_norm;
  HeadNormActivations<T> query_norm, key_norm;  // with query_key_norm only
  T* query;                                     // (N, H D), rotated
  T* key;                                       // (N, K D), rotated
  T* value;                                     // (N, K D)
  T* probabilities;                             // (B, H, T, T)
  T* attention;                                 // (N, H D)
  T* middle;                                    // (N, C) the residual stream between attention and MLP
  NormActivations<T> mlp_norm;
  T* gate;                       // (N, F), SwiGLU only
  T* up;                         // (N, F)
  T* hidden;                     // (N, F)
  ExpertActivations<T> experts;  // instead of the three above, if the layer has experts
};

/// Gradients in flight; all blocks share them.
template <class T>
struct GradientScratch {
  T* residual;       // (N, C)
  T* normed;         // (N, C)
  T* query;          // (N, H D)
  T* key;            // (N, K D)
  T* value;          // (N, K D)
  T* before_norm;    // (N, H D), with query_key_norm only: of queries, then of keys
  T* attention;      // (N, H D)
  T* probabilities;  // (T, T)
  T* gate;           // (N, F), SwiGLU only
  T* up;             // (N, F)
  T* hidden;         // (N, F)
  ExpertScratch<T> experts;
};

template <class T>
struct Activations {
  /// With Keep::inputs the blocks share one memory for everything but their inputs; it holds what the last
  /// block wrote.
  std::vector<BlockActivations<T>> blocks;
  T* output;                      // (N, C) the residual stream after the last block
  NormActivations<T> final_norm;  // this and the logits only in a part that ends the model
  T* logits;                      // (N, V), then probabilities, then their gradients
  GradientScratch<T> gradients;
  std::vector<ExpertRoutes> routes;  // of the layers with experts; the blocks point to them
};

/// What forward keeps of each block for backward.
enum class Keep : std::uint8_t {
  activations,  ///< all of them
  inputs,       ///< the block's input; backward recomputes the rest, with the same bits
};

/// Hands out consecutive pieces of one allocation, each aligned to 64 bytes. Without memory (base null) it
/// hands out null and counts, so the same code plans and places. The count saturates instead of wrapping.
template <class T>
class Carver {
 public:
  explicit Carver(T* base) : base_(base) {}

  T* take(std::size_t rows, std::size_t columns = 1) {
    T* piece = base_ == nullptr ? nullptr : base_ + used_;
    std::size_t count = 0;
    if (__builtin_mul_overflow(rows, columns, &count) || __builtin_add_overflow(count, kAlign - 1, &count) ||
        __builtin_add_overflow(used_, count / kAlign * kAlign, &used_)) {
      used_ = std::numeric_limits<std::size_t>::max() / sizeof(T) / 2;
    }
    return piece;
  }

  std::size_t elements() const { return used_; }

 private:
  static constexpr std::size_t kAlign = 64 / sizeof(T);
  T* base_;
  std::size_t used_ = 0;
};

struct BatchShape {
  std::size_t batch = 0;   ///< sequences
  std::size_t length = 0;  ///< tokens of each

  std::size_t rows() const { return batch * length; }
};

/// An Error says what the shape must be, for a model with this configuration, which is valid.
core::Result<void> check_shape(const ModelConfig& config, BatchShape shape);
core::Result<void> check_tokens(std::span<const std::int32_t> tokens, std::size_t vocabulary);
/// As check_tokens(), but kNoTarget is allowed.
core::Result<void> check_targets(std::span<const std::int32_t> targets, std::size_t vocabulary);

/// Errc::unavailable for Keep::inputs in models with experts, whose routes are kept.
core::Result<void> check_keep(const ModelConfig& config, Keep keep);

/// Sizes of what a rank keeps that do not follow from its shape.
struct ActivationExtents {
  std::optional<std::size_t> stream_rows;  ///< of the residual stream and its norms; empty: N
  std::optional<std::size_t> keys;         ///< that a row may see; empty: T
};

template <class T>
Activations<T> carve(Carver<T>& carver, const ModelConfig& config, BatchShape shape, Keep keep,
                     const ActivationExtents& extents = {});
/// For a part of a model without experts, whose gradients are carved separately.
template <class T>
Activations<T> carve_part(Carver<T>& carver, const ModelConfig& config, BatchShape shape, Keep keep,
                          ModelPart part, const ActivationExtents& extents = {});
template <class T>
GradientScratch<T> carve_gradients(Carver<T>& carver, const ModelConfig& config, BatchShape shape,
                                   const ActivationExtents& extents = {});

}  // namespace troupe::apps::gpt
