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

  /// A petabyte where it would be more.
  std::int64_t bytes(const MicrobatchShape& shape) const {
    const double each = static_cast<double>(narrow) * static_cast<double>(size_of(shape.dtype)) +
                        static_cast<double>(wide) * static_cast<double>(size_of(DType::f32));
    const auto tokens = shape.sequences * (shape.length / shape.context_parallel);
    const double all = static_cast<double>(tokens) * each;
    return static_cast<std::int64_t>(std::min(all, kMostBytes));
  }
};

/// Of attention, all heads together.
struct Widths {
  std::int64_t query = 0;
  std::int64_t key = 0;
  std::int64_t value = 0;
  std::int64_t output = 0;
  std::int64_t latents = 0;
};

Widths widths_of(const TransformerConfig& config) {
  const auto heads = config.num_attention_heads;
  if (config.multi_latent_attention) {
    const auto each = config.qk_head_dim + config.qk_pos_emb_head_dim;
    return {
        .query = heads * each,
        .key = heads * each,
        .value = heads * config.v_head_dim,
        .output = heads * config.v_head_dim,
        .latents = 2 * (config.q_lora_rank.value_or(0) + config.kv_lora_rank) + config.qk_pos_emb_head_dim};
  }
  const auto width = config.kv_channels.value_or(config.hidden_size / heads);
  const auto groups = config.num_query_groups.value_or(heads);
  return {.query = heads * width, .key = groups * width, .value = groups * width, .output = heads * width};
}

std::int64_t norm_statistics(const TransformerConfig& config) {
  return config.normalization == "LayerNorm" ? 2 : 1;
}

/// What a token leaves in an MLP of this width, between its input and its output.
std::int64_t mlp_elements(const TransformerConfig& config, std::int64_t width) {
  return (config.gated_linear_unit ? 3 : 2) * width;
}

std::int64_t feed_forward_elements(const TransformerConfig& config, bool has_experts) {
  if (!has_experts) return mlp_elements(config, config.ffn_hidden_size.value_or(4 * config.hidden_size));
  const auto width = config.moe_ffn_hidden_size.value_or(0);
  return config.moe_router_topk * (config.hidden_size + mlp_elements(config, width)) +
         mlp_elements(config, config.moe_shared_expert_intermediate_size.value_or(0));
}

/// What backward reads of a layer beside its input.
Elements kept_by(const TransformerConfig& config, const MicrobatchShape& shape, bool has_experts) {
  const auto w = widths_of(config);
  const auto heads = config.num_attention_heads;
  Elements kept;
  kept.narrow = 3 * config.hidden_size + w.query + w.key + w.value + w.output + w.latents +
                feed_forward_elements(config, has_experts);
  kept.wide = 2 * norm_statistics(config);
  if (config.qk_layernorm) {
    kept.narrow += w.query + w.key;
    kept.wide += heads + config.num_query_groups.value_or(heads);
  }
  if (has_experts) kept.wide += config.num_moe_experts.value_or(0);
  if (shape.keep_probabilities) {
    kept.narrow += heads * shape.length;
  } else {
    kept.wide += heads;
  }
  return kept;
}

/// Gradients of one layer on their way.
Elements in_flight(const TransformerConfig& config, const MicrobatchShape& shape, bool has_experts) {
  const auto w = widths_of(config);
  Elements scratch;
  scratch.narrow = 2 * config.hidden_size + w.query + w.key + w.value + w.output + w.latents +
                   feed_forward_elements(config, has_experts);
  if (config.qk_layernorm) scratch.narrow += w.query;
  if (!shape.keep_probabilities) scratch.wide = config.num_attention_heads;
  return scratch;
}

/// Keys and values of whole sequences, what a rank adds to their gradients, and either as it is exchanged.
Elements gathered(const TransformerConfig& config) {
  const auto w = widths_of(config);
  return {.narrow = 2 * (w.key + w.value) + std::max(w.key, w.value)};
}

}  // namespace

ActivationBytes activation_bytes(const ModelConfig& model, const MicrobatchShape& shape) {
  const auto& config = model.transformer;
  const Elements input{.narrow = config.hidden_size};
  const auto element = static_cast<std::int64_t>(size_of(shape.dtype));
  auto whole_sequences = shape;
  whole_sequences.context_parallel = 1;
  ActivationBytes bytes;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    const bool has_experts = config.layer_has_experts(layer);
    const auto kept = kept_by(config, shape, has_experts).bytes(shape);
    auto scratch = in_flight(config, shape, has_experts).bytes(shape);
    // One head's matrix of probabilities at a time.
    const auto rows = shape.length / shape.context_parallel;
    if (shape.keep_probabilities) scratch += rows * shape.length * element;
    if (shape.context_parallel > 1) scratch += gathered(config).bytes(whole_sequences);
    if (shape.recompute) scratch += kept;
    bytes.layers += input.bytes(shape) + (shape.recompute ? 0 : kept);
    bytes.transient = std::max(bytes.transient, scratch);
  }
  const auto outputs = model.builder.value_head ? 1 : model.builder.vocab_size;
  const Elements head{.narrow = 2 * config.hidden_size + outputs, .wide = norm_statistics(config)};
  bytes.head = head.bytes(shape);
  return bytes;
}

}  // namespace troupe::core
