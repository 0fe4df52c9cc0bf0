#include "apps/gpt/cuda/cuda_activations.hpp"

#include <algorithm>

#include "apps/gpt/kernels/kernels.hpp"

namespace troupe::apps::gpt {

namespace {

template <class E>
CudaNormActivations<E> carve_norm(ByteCarver& carver, const ModelConfig& config, std::size_t rows) {
  return {.scale = carver.take<float>(rows),
          .mean = config.norm == Norm::layer ? carver.take<float>(rows) : nullptr,
          .output = carver.take<E>(rows, config.width)};
}

template <class E>
CudaHeadNormActivations<E> carve_head_norm(ByteCarver& carver, const ModelConfig& config, std::size_t rows,
                                           std::size_t heads) {
  if (!config.query_key_norm) return {};
  return {.input = carver.take<E>(rows, heads * config.head_size()),
          .scale = carver.take<float>(rows, heads)};
}

template <class E>
CudaBlockActivations<E> carve_block(ByteCarver& carver, const ModelConfig& config, BatchShape shape,
                                    const ActivationExtents& extents, std::size_t layer) {
  const bool has_experts = config.experts.in_layer(layer);
  const bool is_gated = config.activation == Activation::swiglu;
  const std::size_t N = shape.rows(), C = config.width, F = config.feed_forward;
  const std::size_t Q = config.query_width(), K = config.key_width();
  const std::size_t stream_rows = extents.stream_rows.value_or(N);
  return {.input = carver.take<E>(stream_elements<E>(config, stream_rows)),
          .attention_norm = carve_norm<E>(carver, config, stream_rows),
          .query_norm = carve_head_norm<E>(carver, config, N, config.heads),
          .key_norm = carve_head_norm<E>(carver, config, N, config.key_heads()),
          .query = carver.take<E>(N, Q),
          .key = carver.take<E>(N, K),
          .value = carver.take<E>(N, K),
          .log_sum = carver.take<float>(N, config.heads),
          .attention = carver.take<E>(N, Q),
          .middle = carver.take<E>(stream_rows, C),
          .mlp_norm = carve_norm<E>(carver, config, stream_rows),
          .gate = is_gated && !has_experts ? carver.take<E>(N, F) : nullptr,
          .up = has_experts ? nullptr : carver.take<E>(N, F),
          .hidden = has_experts ? nullptr : carver.take<E>(N, F),
          .experts = has_experts ? carve_cuda_experts<E>(carver, layer, N, C, config.experts)
                                 : CudaExpertActivations<E>{}};
}

template <class E>
CudaGradientScratch<E> carve_gradients(ByteCarver& carver, const ModelConfig& config, BatchShape shape) {
  const std::size_t N = shape.rows(), C = config.width, F = config.feed_forward;
  const std::size_t Q = config.query_width(), K = config.key_width();
  std::size_t partials = std::max(cuda::norm_partials(N, C), segments_at_most(config, shape) * C);
  if (config.query_key_value_bias) partials = std::max(partials, cuda::norm_partials(N, std::max(Q, K)));
  if (config.query_key_norm)
    partials = std::max(partials, cuda::norm_partials(N * config.heads, config.head_size()));
  return {.residual = nullptr,
          .normed = carver.take<E>(N, C),
          .query = carver.take<E>(N, Q),
          .key = carver.take<E>(N, K),
          .value = carver.take<E>(N, K),
          .attention = carver.take<E>(N, Q),
          .delta = carver.take<float>(N, config.heads),
          .gate = config.activation == Activation::swiglu ? carver.take<E>(N, F) : nullptr,
          .up = carver.take<E>(N, F),
          .hidden = carver.take<E>(N, F),
          .partials = carver.take<float>(partials),
          .experts = config.experts.count > 0 ? carve_cuda_expert_scratch<E>(carver, N, C, config.experts)
                                              : CudaExpertScratch<E>{}};
}

}  // namespace

std::size_t segments_at_most(const ModelConfig& config, BatchShape shape) {
  return std::min(shape.rows(), config.vocabulary) + shape.rows() / cuda::kSegmentRows;
}

std::size_t token_words(const ModelConfig& config, BatchShape shape) {
  return 5 * shape.rows() + segments_at_most(config, shape) + 2;
}

CudaTokens place_tokens(std::int32_t* words, const ModelConfig& config, BatchShape shape) {
  const std::size_t N = shape.rows();
  const std::size_t segments = segments_at_most(config, shape) + 1;
  return {.tokens = words,
          .targets = words + N,
          .order = words + 2 * N,
          .segments = words + 3 * N,
          .kinds = words + 3 * N + segments,
          .first_segment = words + 4 * N + segments};
}

template <class E>
CudaActivations<E> carve_part(ByteCarver& carver, const ModelConfig& config, BatchShape shape, Keep keep,
                              ModelPart part, const ActivationExtents& extents) {
  const std::size_t N = shape.rows(), stream_rows = extents.stream_rows.value_or(N);
  CudaActivations<E> activations{};
  for (std::size_t layer = part.first; layer < part.end; ++layer) {
    if (keep == Keep::activations || layer == part.first) {
      activations.blocks.push_back(carve_block<E>(carver, config, shape, extents, layer));
    } else {
      activations.blocks.push_back(activations.blocks.front());
      activations.blocks.back().input = carver.take<E>(stream_elements<E>(config, stream_rows));
    }
  }
  activations.output = carver.take<E>(stream_elements<E>(config, stream_rows));
  if (!part.has_end(config)) return activations;
  activations.final_norm = carve_norm<E>(carver, config, stream_rows);
  activations.logits = carver.take<E>(N, config.vocabulary);
  activations.log_sum = carver.take<float>(N);
  activations.row_losses = carver.take<float>(N);
  return activations;
}

template <class E>
CudaShared<E> carve_shared(ByteCarver& carver, const ModelConfig& config, BatchShape shape) {
  const std::size_t half = config.head_size() / 2;
  return {.losses = carver.take<double>(kMostLosses),
          .next_logits = carver.take<float>(config.vocabulary),
          .cosine = carver.take<float>(config.context, half),
          .sine = carver.take<float>(config.context, half),
          .gradients = carve_gradients<E>(carver, config, shape)};
}

template CudaActivations<float> carve_part<float>(ByteCarver&, const ModelConfig&, BatchShape, Keep,
                                                  ModelPart, const ActivationExtents&);
template CudaActivations<Bf16> carve_part<Bf16>(ByteCarver&, const ModelConfig&, BatchShape, Keep, ModelPart,
                                                const ActivationExtents&);
template CudaShared<float> carve_shared<float>(ByteCarver&, const ModelConfig&, BatchShape);
template CudaShared<Bf16> carve_shared<Bf16>(ByteCarver&, const ModelConfig&, BatchShape);

}  // namespace troupe::apps::gpt
