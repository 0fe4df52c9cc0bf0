#include "core/models/activations.hpp"

#include <algorithm>

namespace troupe::core {

namespace {

/// No sum of these overflows, and doubles are exact below it.
constexpr double kMostBytes = 1e15;

/// Per token.
struct Elements {
  std::int64_t narrow = 0;  ///< in the activations' dtype
  std::int64_t wide = 0;    ///< f32
  /// The same, for the rank's rows between layers.
  std::int64_t stream = 0;
  std::int64_t stream_wide = 0;

  /// At most a petabyte.
  std::int64_t bytes(const MicrobatchShape& shape) const {
    const auto tokens = shape.sequences * (shape.length / shape.context_parallel);
    const auto parts = shape.sequence_parallel ? shape.tensor_parallel : 1;
    const auto each = [&](std::int64_t of_dtype, std::int64_t of_f32) {
      return static_cast<double>(of_dtype) * static_cast<double>(size_of(shape.dtype)) +
             static_cast<double>(of_f32) * static_cast<double>(size_of(DType::f32));
    };
    const double all = static_cast<double>(tokens) * each(narrow, wide) +
                       static_cast<double>((tokens + parts - 1) / parts) * each(stream, stream_wide);
    return static_cast<std::int64_t>(std::min(all, kMostBytes));
  }
};

/// For attention, all heads of the rank combined.
struct Widths {
  std::int64_t query = 0;
  std::int64_t key = 0;
  std::int64_t value = 0;
  std::int64_t output = 0;
  std::int64_t latents = 0;
};

Widths widths_of(const TransformerConfig& config, const MicrobatchShape& shape) {
  const auto heads = config.num_attention_heads / shape.tensor_parallel;
  if (config.multi_latent_attention) {
    const auto each = config.qk_head_dim + config.qk_pos_emb_head_dim;
    return {
        .query = heads * each,
        .key = heads * each,
        .value = heads * config.v_head_dim,
        .output = heads * config.v_head_dim,
        .latents = 2 * (config.q_lora_rank.value_or(0) + config.kv_lora_rank) + config.qk_pos_emb_head_dim};
  }
  const auto width = config.kv_channels.value_or(config.hidden_size / config.num_attention_heads);
  const auto groups = config.num_query_groups.value_or(config.num_attention_heads) / shape.tensor_parallel;
  return {.query = heads * width, .key = groups * width, .value = groups * width, .output = heads * width};
}

std::int64_t norm_statistics(const TransformerConfig& config) {
  return config.normalization == "LayerNorm" ? 2 : 1;
}

/// What a token leaves in an MLP of this width, between its input and its output.
std::int64_t mlp_elements(const TransformerConfig& config, std::int64_t width) {
  return (config.gated_linear_unit ? 3 : 2) * width;
}

std::int64_t feed_forward_elements(const TransformerConfig& config, const MicrobatchShape& shape,
                                   bool has_experts) {
  const auto own = [&](std::int64_t width) { return mlp_elements(config, width / shape.tensor_parallel); };
  if (!has_experts) return own(config.ffn_hidden_size.value_or(4 * config.hidden_size));
  return config.moe_router_topk * (config.hidden_size + own(config.moe_ffn_hidden_size.value_or(0))) +
         own(config.moe_shared_expert_intermediate_size.value_or(0));
}

/// Besides one of each token that experts, and the shared one, return: those of further slices.
std::int64_t expert_terms(const TransformerConfig& config, const MicrobatchShape& shape) {
  const std::int64_t shared = config.moe_shared_expert_intermediate_size ? 1 : 0;
  return (shape.slices - 1) * (config.moe_router_topk + shared) * config.hidden_size;
}

/// What backward reads in a layer in addition to its input.
Elements kept_by(const TransformerConfig& config, const MicrobatchShape& shape, bool has_experts) {
  const auto w = widths_of(config, shape);
  const auto heads = config.num_attention_heads / shape.tensor_parallel;
  Elements kept;
  kept.stream = 3 * config.hidden_size;
  kept.stream_wide = 2 * norm_statistics(config);
  kept.narrow =
      w.query + w.key + w.value + w.output + w.latents + feed_forward_elements(config, shape, has_experts);
  if (config.qk_layernorm) {
    kept.narrow += w.query + w.key;
    kept.wide += heads + config.num_query_groups.value_or(config.num_attention_heads) / shape.tensor_parallel;
  }
  if (has_experts) {
    kept.wide += config.num_moe_experts.value_or(0);
    kept.narrow += expert_terms(config, shape);
  }
  if (shape.keep_probabilities) {
    kept.narrow += heads * shape.length;
  } else {
    kept.wide += heads;
  }
  return kept;
}

/// Gradients in flight of one layer, and all rows if ranks share those between layers.
Elements in_flight(const TransformerConfig& config, const MicrobatchShape& shape, bool has_experts) {
  const auto w = widths_of(config, shape);
  Elements scratch;
  scratch.stream = config.hidden_size;
  scratch.narrow = config.hidden_size + w.query + w.key + w.value + w.output + w.latents +
                   feed_forward_elements(config, shape, has_experts);
  if (!shape.keep_probabilities) scratch.wide = config.num_attention_heads / shape.tensor_parallel;
  scratch.narrow += (shape.slices - 1) * config.hidden_size;
  // The terms of their gradients, besides those that they are computed from.
  if (has_experts && shape.slices > 1)
    scratch.narrow += shape.slices * config.moe_router_topk * config.hidden_size;
  if (!shape.sequence_parallel) return scratch;
  scratch.stream += config.hidden_size;
  scratch.narrow += (has_experts ? 2 : 1) * config.hidden_size;
  return scratch;
}

/// Keys and values of whole sequences, summands of their gradients, and a copy of either for exchange.
Elements gathered(const TransformerConfig& config, const MicrobatchShape& shape) {
  const auto w = widths_of(config, shape);
  return {.narrow = 2 * (w.key + w.value) + std::max(w.key, w.value)};
}

/// For consecutive layers.
ActivationBytes of_layers(const ModelConfig& model, const MicrobatchShape& shape, const LayerChunk& layers) {
  const auto& config = model.transformer;
  const Elements input{.stream = config.hidden_size};
  const auto element = static_cast<std::int64_t>(size_of(shape.dtype));
  auto whole_sequences = shape;
  whole_sequences.context_parallel = 1;
  ActivationBytes bytes;
  for (auto layer = layers.first; layer < layers.first + layers.count; ++layer) {
    const bool has_experts = config.layer_has_experts(layer);
    const auto kept = kept_by(config, shape, has_experts).bytes(shape);
    auto scratch = in_flight(config, shape, has_experts).bytes(shape);
    // One head's matrix of probabilities at a time.
    const auto rows = shape.length / shape.context_parallel;
    if (shape.keep_probabilities) scratch += rows * shape.length * element;
    if (shape.context_parallel > 1) scratch += gathered(config, shape).bytes(whole_sequences);
    if (shape.recompute) scratch += kept;
    bytes.layers += input.bytes(shape) + (shape.recompute ? 0 : kept);
    bytes.transient = std::max(bytes.transient, scratch);
  }
  Elements head{.stream = config.hidden_size};  // its output
  if (layers.first + layers.count == config.num_layers) {
    const auto outputs = model.builder.value_head ? 1 : model.builder.vocab_size / shape.tensor_parallel;
    head.narrow = outputs;
    head.stream += config.hidden_size;
    head.stream_wide = norm_statistics(config);
  }
  bytes.head = head.bytes(shape);
  return bytes;
}

}  // namespace

ActivationBytes activation_bytes(const ModelConfig& model, const MicrobatchShape& shape) {
  return of_layers(model, shape, {0, model.transformer.num_layers});
}

ActivationBytes activation_bytes(const ModelConfig& model, const MicrobatchShape& shape,
                                 const StageMicrobatches& stage) {
  const auto most = [](std::int64_t of_each, std::int64_t count) {
    return static_cast<std::int64_t>(
        std::min(static_cast<double>(of_each) * static_cast<double>(count), kMostBytes));
  };
  ActivationBytes slot;
  std::int64_t transient = 0;
  for (const auto& chunk : stage.chunks) {
    const auto bytes = of_layers(model, shape, chunk);
    transient = std::max(transient, bytes.transient);
    if (bytes.layers + bytes.head > slot.layers + slot.head) slot = bytes;
  }
  const auto rows = Elements{.stream = model.transformer.hidden_size}.bytes(shape);
  // Each microbatch has its own gradient by its rows, so layers share none.
  const auto more =
      most(rows, stage.activations + std::max<std::int64_t>(stage.inputs - stage.activations, 0) - 1);
  return {.layers = most(slot.layers, stage.activations),
          .head = most(slot.head, stage.activations),
          .transient = transient + more};
}

}  // namespace troupe::core
