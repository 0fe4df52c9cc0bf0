#include "apps/gpt/cuda/cuda_weight_work.hpp"

namespace troupe::apps::gpt {

// N rows, C width, F feed_forward, S slots of experts, R rows that they compute with, Q the width of queries,
// K of keys.

namespace {

template <class E>
void plan_experts(ByteCarver& carver, const ExpertConfig& config, std::size_t N, std::size_t C) {
  const std::size_t R = config.most_rows(N), G = config.shared_feed_forward;
  carver.take<E>(R, C);  // with respect to the experts' output
  for (int matrix = 0; matrix < 2; ++matrix) carver.take<E>(R, config.feed_forward);
  if (config.ranks == 1) carver.take<E>(N * config.choices, C);  // the gathered tokens
  carver.take<E>(N, config.count);
  if (G == 0) return;
  carver.take<E>(N, C);
  for (int matrix = 0; matrix < 2; ++matrix) carver.take<E>(N, G);
  if (config.shared_gate) carver.take<E>(N);
}

}  // namespace

template <class E>
std::size_t kept_bytes(const ModelConfig& config, std::size_t N, std::size_t own_rows, ModelPart part,
                       bool sequence) {
  const std::size_t C = config.width, F = config.feed_forward;
  const std::size_t Q = config.query_width(), K = config.key_width();
  ByteCarver carver(nullptr);
  for (std::size_t layer = part.first; layer < part.end; ++layer) {
    carver.take<E>(N, C);  // with respect to attention's output, then to its projections
    carver.take<E>(N, Q);
    for (int side = 0; side < 2; ++side) carver.take<E>(N, K);
    if (config.query_key_norm) {
      carver.take<E>(N, Q);
      carver.take<E>(N, K);
    }
    if (config.attention_output_bias) carver.take<E>(own_rows, C);
    for (int norm = 0; norm < 2; ++norm) {
      carver.take<E>(own_rows, C);
      if (sequence) carver.take<E>(N, C);  // its gathered output
    }
    if (config.experts.in_layer(layer)) {
      plan_experts<E>(carver, config.experts, N, C);
      continue;
    }
    carver.take<E>(N, C);
    carver.take<E>(N, F);
    if (config.activation == Activation::swiglu) carver.take<E>(N, F);
  }
  if (part.has_begin()) carver.take<E>(N, C);
  if (part.has_end(config)) {
    carver.take<E>(own_rows, C);
    if (sequence && !config.tied_embeddings) carver.take<E>(N, C);
  }
  return carver.bytes();
}

template std::size_t kept_bytes<float>(const ModelConfig&, std::size_t, std::size_t, ModelPart, bool);
template std::size_t kept_bytes<Bf16>(const ModelConfig&, std::size_t, std::size_t, ModelPart, bool);

}  // namespace troupe::apps::gpt
