#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "apps/gpt/model/carver.hpp"
#include "apps/gpt/model/config.hpp"
#include "apps/gpt/model/element.hpp"
#include "apps/gpt/model/expert_activations.hpp"
#include "apps/gpt/model/model_part.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

// B batch, T length, N = B*T rows, C width, H heads, K heads with keys of their own, D head size,
// F feed_forward, V vocabulary. Statistics and sums are SumOf<E>.

/// What one norm saves for backward.
template <class E>
struct NormActivations {
  SumOf<E>* scale;  // (N)
  SumOf<E>* mean;   // (N), LayerNorm only
  E* output;        // (N, C)
};

/// Queries or keys before the norm of each head, and what the norm saves.
template <class E>
struct HeadNormActivations {
  E* input;         // (N, H D) or (N, K D)
  SumOf<E>* scale;  // (N, H) or (N, K)
};

template <class E>
struct BlockActivations {
  E* input;  // (N, C) the residual stream at the block's input
  NormActivations<E> attention_norm;
  HeadNormActivations<E> query_norm, key_norm;  // with query_key_norm only
  E* query;                                     // (N, H D), rotated
  E* key;                                       // (N, K D), rotated
  E* value;                                     // (N, K D)
  SumOf<E>* scores;  // probabilities (B, H, T, T) on the host, on a GPU logarithms of their sums (B, H, T)
  E* attention;      // (N, H D)
  E* middle;         // (N, C) the residual stream between attention and MLP
  NormActivations<E> mlp_norm;
  E* gate;                       // (N, F), SwiGLU only
  E* up;                         // (N, F)
  E* hidden;                     // (N, F)
  ExpertActivations<E> experts;  // instead of the three above, if the layer has experts
};

/// Gradients in flight; all blocks share them.
template <class E>
struct GradientScratch {
  E* residual;         // (N, C), of the pass
  E* normed;           // terms of (N, C), then (N, C)
  E* query;            // (N, H D)
  E* key;              // (N, K D)
  E* value;            // (N, K D)
  E* attention;        // (N, H D)
  SumOf<E>* scores;    // (T, T) on the host, (B, H, T) on a GPU
  E* gate;             // (N, F), SwiGLU only
  E* up;               // (N, F)
  E* hidden;           // (N, F)
  SumOf<E>* partials;  // on a GPU: sums of groups of rows
  ExpertScratch<E> experts;
};

/// For a microbatch in a part of the model's layers.
template <class E>
struct Activations {
  /// With Keep::inputs the blocks share one memory for everything but their inputs; it holds what the last
  /// block wrote.
  std::vector<BlockActivations<E>> blocks;
  E* output;  // (N, C) the residual stream after the last block
  // Only if the part ends the model:
  NormActivations<E> final_norm;
  E* logits;                         // (N, V), then on the host probabilities, then their gradients
  SumOf<E>* log_sum;                 // (N), on a GPU
  SumOf<E>* row_losses;              // as above
  std::vector<ExpertRoutes> routes;  // on the host, of the layers with experts; the blocks point to them
};

/// What forward keeps of each block for backward.
enum class Keep : std::uint8_t {
  activations,  ///< all of them
  inputs,       ///< the block's input; backward recomputes the rest, with the same bits
};

struct BatchShape {
  std::size_t batch = 0;   ///< sequences
  std::size_t length = 0;  ///< tokens of each

  std::size_t rows() const { return batch * length; }
};

/// An Error says what the shape must be, for a model with this configuration, which is valid.
core::Result<void> check_shape(const ModelConfig& config, BatchShape shape);
core::Result<void> check_tokens(std::span<const std::int32_t> tokens, std::size_t vocabulary);
/// Like check_tokens(), but kNoTarget is allowed.
core::Result<void> check_targets(std::span<const std::int32_t> targets, std::size_t vocabulary);

/// Errc::unavailable for Keep::inputs in models with experts, whose routes are kept.
core::Result<void> check_keep(const ModelConfig& config, Keep keep);

/// Sizes of what a rank keeps that do not follow from its shape.
struct ActivationExtents {
  std::optional<std::size_t> stream_rows;  ///< of the residual stream and its norms; empty: N
  std::optional<std::size_t> keys;         ///< that a row may see; empty: T
  std::size_t slices = 1;                  ///< of each layer, that the rank computes
};

template <class E>
NormActivations<E> carve_norm(Carver& carver, const ModelConfig& config, std::size_t rows) {
  return {.scale = carver.take<SumOf<E>>(rows),
          .mean = config.norm == Norm::layer ? carver.take<SumOf<E>>(rows) : nullptr,
          .output = carver.take<E>(rows, config.width)};
}

template <class E>
HeadNormActivations<E> carve_head_norm(Carver& carver, const ModelConfig& config, std::size_t rows,
                                       std::size_t heads) {
  if (!config.query_key_norm) return {};
  return {.input = carver.take<E>(rows, heads * config.head_size()),
          .scale = carver.take<SumOf<E>>(rows, heads)};
}

/// X is the engine that computes with them (apps/gpt/model/host_engine.hpp).
template <class X>
auto carve_block(Carver& carver, const ModelConfig& config, BatchShape shape,
                 const ActivationExtents& extents, std::size_t layer) {
  using E = typename X::Element;
  const bool has_experts = config.experts.in_layer(layer);
  const bool is_gated = config.activation == Activation::swiglu;
  const std::size_t N = shape.rows(), C = config.width, F = config.feed_forward;
  const std::size_t Q = config.query_width(), K = config.key_width();
  const std::size_t stream_rows = extents.stream_rows.value_or(N);
  const std::size_t keys = extents.keys.value_or(shape.length);
  BlockActivations<E> block{.input = carver.take<E>(X::stream_elements(config, stream_rows)),
                            .attention_norm = carve_norm<E>(carver, config, stream_rows),
                            .query_norm = carve_head_norm<E>(carver, config, N, config.heads),
                            .key_norm = carve_head_norm<E>(carver, config, N, config.key_heads()),
                            .query = carver.take<E>(N, Q),
                            .key = carver.take<E>(N, K),
                            .value = carver.take<E>(N, K),
                            .scores = carver.take<SumOf<E>>(N * config.heads, X::kIsDevice ? 1 : keys),
                            .attention = carver.take<E>(N, Q),
                            .middle = carver.take<E>(stream_rows, C),
                            .mlp_norm = carve_norm<E>(carver, config, stream_rows),
                            .gate = is_gated && !has_experts ? carver.take<E>(N, F) : nullptr,
                            .up = has_experts ? nullptr : carver.take<E>(N, F),
                            .hidden = has_experts ? nullptr : carver.take<E>(N, F),
                            .experts = has_experts
                                           ? carve_experts<X>(carver, N, C, config.experts, extents.slices)
                                           : ExpertActivations<E>{}};
  block.experts.layer = layer;
  return block;
}

template <class X>
auto carve_part(Carver& carver, const ModelConfig& config, BatchShape shape, Keep keep, ModelPart part,
                const ActivationExtents& extents = {}) {
  using E = typename X::Element;
  const std::size_t N = shape.rows(), rows = extents.stream_rows.value_or(N);
  Activations<E> activations{};
  for (std::size_t layer = part.first; layer < part.end; ++layer) {
    if (keep == Keep::activations || layer == part.first) {
      activations.blocks.push_back(carve_block<X>(carver, config, shape, extents, layer));
    } else {
      activations.blocks.push_back(activations.blocks.front());
      activations.blocks.back().input = carver.take<E>(X::stream_elements(config, rows));
    }
  }
  activations.output = carver.take<E>(X::stream_elements(config, rows));
  if (!part.has_end(config)) return activations;
  activations.final_norm = carve_norm<E>(carver, config, rows);
  activations.logits = carver.take<E>(N, config.vocabulary);
  activations.log_sum = X::kIsDevice ? carver.take<SumOf<E>>(N) : nullptr;
  activations.row_losses = X::kIsDevice ? carver.take<SumOf<E>>(N) : nullptr;
  return activations;
}

/// Without `residual`.
template <class X>
auto carve_gradients(Carver& carver, const ModelConfig& config, BatchShape shape,
                     const ActivationExtents& extents = {}) {
  using E = typename X::Element;
  const std::size_t N = shape.rows(), C = config.width, F = config.feed_forward;
  const std::size_t keys = extents.keys.value_or(shape.length);
  const std::size_t Q = config.query_width(), K = config.key_width();
  return GradientScratch<E>{
      .residual = nullptr,
      .normed = carver.take<E>(N, extents.slices * C),
      .query = carver.take<E>(N, Q),
      .key = carver.take<E>(N, K),
      .value = carver.take<E>(N, K),
      .attention = carver.take<E>(N, Q),
      .scores =
          X::kIsDevice ? carver.take<SumOf<E>>(N, config.heads) : carver.take<SumOf<E>>(shape.length, keys),
      .gate = config.activation == Activation::swiglu ? carver.take<E>(N, F) : nullptr,
      .up = carver.take<E>(N, F),
      .hidden = carver.take<E>(N, F),
      .partials = carver.take<SumOf<E>>(X::partial_sums(config, shape)),
      .experts = config.experts.count > 0
                     ? carve_expert_scratch<X>(carver, N, C, config.experts, extents.slices)
                     : ExpertScratch<E>{}};
}

}  // namespace troupe::apps::gpt
