#include "apps/gpt/model/activations.hpp"

#include "apps/gpt/layers/cross_entropy.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;
using core::Result;

namespace {

// BLAS uses 32-bit integers for sizes.
constexpr std::size_t kMostRows = std::size_t{1} << 24;

template <class T>
NormActivations<T> carve_norm(Carver<T>& carver, const ModelConfig& config, std::size_t rows) {
  return {.scale = carver.take(rows),
          .mean = config.norm == Norm::layer ? carver.take(rows) : nullptr,
          .output = carver.take(rows, config.width)};
}

template <class T>
HeadNormActivations<T> carve_head_norm(Carver<T>& carver, const ModelConfig& config, std::size_t rows,
                                       std::size_t heads) {
  if (!config.query_key_norm) return {};
  return {.input = carver.take(rows, heads * config.head_size()), .scale = carver.take(rows, heads)};
}

template <class T>
BlockActivations<T> carve_block(Carver<T>& carver, const ModelConfig& config, BatchShape shape,
                                const ActivationExtents& extents, bool has_experts) {
  const std::size_t N = shape.rows(), C = config.width, F = config.feed_forward;
  const std::size_t stream_rows = extents.stream_rows.value_or(N), keys = extents.keys.value_or(shape.length);
  const std::size_t Q = config.query_width(), K = config.key_width();
  const bool is_gated = config.activation == Activation::swiglu;
  return {.input = carver.take(stream_rows, C),
          .attention_norm = carve_norm(carver, config, stream_rows),
          .query_norm = carve_head_norm(carver, config, N, config.heads),
          .key_norm = carve_head_norm(carver, config, N, config.key_heads()),
          .query = carver.take(N, Q),
          .key = carver.take(N, K),
          .value = carver.take(N, K),
          .probabilities = carver.take(N * config.heads, keys),
          .attention = carver.take(N, Q),
          .middle = carver.take(stream_rows, C),
          .mlp_norm = carve_norm(carver, config, stream_rows),
          .gate = is_gated && !has_experts ? carver.take(N, F) : nullptr,
          .up = has_experts ? nullptr : carver.take(N, F),
          .hidden = has_experts ? nullptr : carver.take(N, F),
          .experts = has_experts ? carve_experts<T>(carver, N, C, config.experts) : ExpertActivations<T>{}};
}

}  // namespace

Result<void> check_shape(const ModelConfig& config, BatchShape shape) {
  if (shape.batch < 1 || shape.batch > kMostRows / config.context) {
    return fail(Errc::invalid_argument, "the batch must be 1..{} sequences, found {}",
                kMostRows / config.context, shape.batch);
  }
  if (shape.length < 1 || shape.length > config.context) {
    return fail(Errc::invalid_argument, "a sequence must have 1..{} tokens (the context), found {}",
                config.context, shape.length);
  }
  return {};
}

Result<void> check_tokens(std::span<const std::int32_t> tokens, std::size_t vocabulary) {
  for (const std::int32_t token : tokens) {
    if (token < 0 || static_cast<std::size_t>(token) >= vocabulary) {
      return fail(Errc::invalid_argument,
                  "token {} is outside the vocabulary of {}; choose a vocabulary that covers the text", token,
                  vocabulary);
    }
  }
  return {};
}

Result<void> check_targets(std::span<const std::int32_t> targets, std::size_t vocabulary) {
  for (const std::int32_t target : targets) {
    if (target != kNoTarget) TRY(check_tokens(std::span(&target, 1), vocabulary));
  }
  return {};
}

Result<void> check_keep(const ModelConfig& config, Keep keep) {
  if (keep == Keep::activations || config.experts.count == 0) return {};
  return fail(Errc::unavailable,
              "activations of experts are kept, not computed again in backward; leave --recompute out for a "
              "model with experts");
}

template <class T>
GradientScratch<T> carve_gradients(Carver<T>& carver, const ModelConfig& config, BatchShape shape,
                                   const ActivationExtents& extents) {
  const std::size_t N = shape.rows(), C = config.width, F = config.feed_forward;
  const std::size_t stream_rows = extents.stream_rows.value_or(N), keys = extents.keys.value_or(shape.length);
  const std::size_t Q = config.query_width(), K = config.key_width();
  return {.residual = carver.take(stream_rows, C),
          .normed = carver.take(N, C),
          .query = carver.take(N, Q),
          .key = carver.take(N, K),
          .value = carver.take(N, K),
          .before_norm = config.query_key_norm ? carver.take(N, Q) : nullptr,
          .attention = carver.take(N, Q),
          .probabilities = carver.take(shape.length, keys),
          .gate = config.activation == Activation::swiglu ? carver.take(N, F) : nullptr,
          .up = carver.take(N, F),
          .hidden = carver.take(N, F),
          .experts = config.experts.count > 0 ? carve_expert_scratch<T>(carver, N, C, config.experts)
                                              : ExpertScratch<T>{}};
}

template <class T>
Activations<T> carve_part(Carver<T>& carver, const ModelConfig& config, BatchShape shape, Keep keep,
                          ModelPart part, const ActivationExtents& extents) {
  const std::size_t rows = extents.stream_rows.value_or(shape.rows());
  Activations<T> activations{};
  for (std::size_t layer = part.first; layer < part.end; ++layer) {
    if (keep == Keep::activations || layer == part.first) {
      activations.blocks.push_back(
          carve_block(carver, config, shape, extents, config.experts.in_layer(layer)));
    } else {
      activations.blocks.push_back(activations.blocks.front());
      activations.blocks.back().input = carver.take(rows, config.width);
    }
  }
  activations.output = carver.take(rows, config.width);
  if (!part.has_end(config)) return activations;
  activations.final_norm = carve_norm(carver, config, rows);
  activations.logits = carver.take(shape.rows(), config.vocabulary);
  return activations;
}

template <class T>
Activations<T> carve(Carver<T>& carver, const ModelConfig& config, BatchShape shape, Keep keep,
                     const ActivationExtents& extents) {
  auto activations = carve_part(carver, config, shape, keep, whole_model(config), extents);
  activations.gradients = carve_gradients(carver, config, shape, extents);
  activations.routes.resize(config.layers);
  for (std::size_t layer = 0; layer < config.layers; ++layer) {
    if (!config.experts.in_layer(layer)) continue;
    auto& experts = activations.blocks[layer].experts;
    experts.routes = &activations.routes[layer];
    experts.layer = layer;
    experts.gathered = activations.gradients.experts.gathered;
    experts.returned = activations.gradients.experts.rows;
  }
  return activations;
}

template Activations<float> carve<float>(Carver<float>&, const ModelConfig&, BatchShape, Keep,
                                         const ActivationExtents&);
template Activations<double> carve<double>(Carver<double>&, const ModelConfig&, BatchShape, Keep,
                                           const ActivationExtents&);
template Activations<float> carve_part<float>(Carver<float>&, const ModelConfig&, BatchShape, Keep, ModelPart,
                                              const ActivationExtents&);
template GradientScratch<float> carve_gradients<float>(Carver<float>&, const ModelConfig&, BatchShape,
                                                       const ActivationExtents&);

}  // namespace troupe::apps::gpt
