#include "core/models/weight_map.hpp"

#include <algorithm>

#include "core/errors.hpp"
#include "core/models/weight_builder.hpp"

namespace troupe::core {

namespace {

/// The names of one layer and its place.
struct Layer {
  std::string megatron;  ///< "decoder.layers.{l}."
  std::string theirs;    ///< "model.layers.7."
  bool has_experts = false;
};

void add_queries(WeightBuilder& add, const TransformerConfig& config, const Layer& layer) {
  const auto heads = config.num_attention_heads;
  const auto groups = *config.num_query_groups;
  const auto width = *config.kv_channels;
  const auto wide = heads / groups * width;
  const auto from = layer.theirs + "self_attn.";
  for (const char* kind : {"weight", "bias"}) {
    const bool is_bias = std::string_view(kind) == "bias";
    if (is_bias && !config.add_qkv_bias) continue;
    const auto shape = [&](std::int64_t rows) {
      return is_bias ? Shape{rows} : Shape{rows, config.hidden_size};
    };
    const auto q = add.input(from + "q_proj." + kind, shape(heads * width));
    const auto k = add.input(from + "k_proj." + kind, shape(groups * width));
    const auto v = add.input(from + "v_proj." + kind, shape(groups * width));
    std::vector<TensorPiece> pieces;
    for (std::int64_t group = 0; group < groups; ++group) {
      const auto row = group * (wide + 2 * width);
      pieces.push_back(add.rows(q, group * wide, wide, row));
      pieces.push_back(add.rows(k, group * width, width, row + wide));
      pieces.push_back(add.rows(v, group * width, width, row + wide + width));
    }
    add.output(layer.megatron + "self_attention.linear_qkv." + kind, shape((heads + 2 * groups) * width),
               WeightSplit::rows, std::move(pieces));
  }
  if (!config.qk_layernorm) return;
  add.same(layer.megatron + "self_attention.q_layernorm.weight", from + "q_norm.weight", {width});
  add.same(layer.megatron + "self_attention.k_layernorm.weight", from + "k_norm.weight", {width});
}

void add_attention(WeightBuilder& add, const TransformerConfig& config, const Layer& layer) {
  add.same(layer.megatron + "self_attention.linear_qkv.layer_norm_weight",
           layer.theirs + "input_layernorm.weight", {config.hidden_size});
  add_queries(add, config, layer);
  add.same(layer.megatron + "self_attention.linear_proj.weight", layer.theirs + "self_attn.o_proj.weight",
           {config.hidden_size, config.num_attention_heads * *config.kv_channels}, WeightSplit::columns);
}

void add_latent_attention(WeightBuilder& add, const TransformerConfig& config, const Layer& layer) {
  const auto h = config.hidden_size;
  const auto heads = config.num_attention_heads;
  const auto query = heads * (config.qk_head_dim + config.qk_pos_emb_head_dim);
  const auto to = layer.megatron + "self_attention.";
  const auto from = layer.theirs + "self_attn.";
  add.same(layer.megatron + "input_layernorm.weight", layer.theirs + "input_layernorm.weight", {h});
  if (config.q_lora_rank) {
    const auto rank = *config.q_lora_rank;
    add.same(to + "linear_q_down_proj.weight", from + "q_a_proj.weight", {rank, h});
    add.same(to + "linear_q_up_proj.layer_norm_weight", from + "q_a_layernorm.weight", {rank});
    add.same(to + "linear_q_up_proj.weight", from + "q_b_proj.weight", {query, rank}, WeightSplit::rows);
  } else {
    add.same(to + "linear_q_proj.weight", from + "q_proj.weight", {query, h}, WeightSplit::rows);
  }
  const auto rank = config.kv_lora_rank;
  add.same(to + "linear_kv_down_proj.weight", from + "kv_a_proj_with_mqa.weight",
           {rank + config.qk_pos_emb_head_dim, h});
  add.same(to + "linear_kv_up_proj.layer_norm_weight", from + "kv_a_layernorm.weight", {rank});
  add.same(to + "linear_kv_up_proj.weight", from + "kv_b_proj.weight",
           {heads * (config.qk_head_dim + config.v_head_dim), rank}, WeightSplit::rows);
  add.same(to + "linear_proj.weight", from + "o_proj.weight", {h, heads * config.v_head_dim},
           WeightSplit::columns);
}

/// Megatron's and Hugging Face's names of the two products of a gated layer.
struct Gated {
  std::string fc1, fc2, gate, up, down;
};

void add_gated(WeightBuilder& add, const Gated& names, std::int64_t hidden, std::int64_t width) {
  const auto gate = add.input(names.gate, {width, hidden});
  const auto up = add.input(names.up, {width, hidden});
  add.output(names.fc1, {2 * width, hidden}, WeightSplit::gate_up,
             {add.rows(gate, 0, width, 0), add.rows(up, 0, width, width)});
  add.same(names.fc2, names.down, {hidden, width}, WeightSplit::columns);
}

void add_experts(WeightBuilder& add, const ModelConfig& model, const Layer& layer) {
  const auto& config = model.transformer;
  const bool mixtral = model.architecture == Architecture::mixtral;
  const auto from = layer.theirs + (mixtral ? "block_sparse_moe." : "mlp.");
  const auto to = layer.megatron + "mlp.";
  const auto experts = *config.num_moe_experts;
  add.same(layer.megatron + "pre_mlp_layernorm.weight", layer.theirs + "post_attention_layernorm.weight",
           {config.hidden_size});
  add.same(to + "router.weight", from + "gate.weight", {experts, config.hidden_size});
  if (config.moe_router_enable_expert_bias)
    add.same(to + "router.expert_bias", from + "gate.e_score_correction_bias", {experts});
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    add.of_expert(expert);
    const auto one = fmt::format("{}experts.{}.", from, expert);
    const auto in =
        config.moe_grouped_gemm ? to + "experts.linear_fc" : to + "experts.local_experts.{e}.linear_fc";
    const std::string end = config.moe_grouped_gemm ? ".weight{e}" : ".weight";
    add_gated(add,
              mixtral ? Gated{in + "1" + end, in + "2" + end, one + "w1.weight", one + "w3.weight",
                              one + "w2.weight"}
                      : Gated{in + "1" + end, in + "2" + end, one + "gate_proj.weight",
                              one + "up_proj.weight", one + "down_proj.weight"},
              config.hidden_size, *config.moe_ffn_hidden_size);
  }
  add.of_expert(-1);
  if (!config.moe_shared_expert_intermediate_size) return;
  const auto shared = from + (model.builder.shared_expert_gate ? "shared_expert." : "shared_experts.");
  add_gated(add,
            {to + "shared_experts.linear_fc1.weight", to + "shared_experts.linear_fc2.weight",
             shared + "gate_proj.weight", shared + "up_proj.weight", shared + "down_proj.weight"},
            config.hidden_size, *config.moe_shared_expert_intermediate_size);
  if (model.builder.shared_expert_gate)
    add.same(to + "shared_experts.gate_weight", from + "shared_expert_gate.weight", {1, config.hidden_size});
}

void add_layer(WeightBuilder& add, const ModelConfig& model, const Layer& layer) {
  const auto& config = model.transformer;
  if (config.multi_latent_attention) {
    add_latent_attention(add, config, layer);
  } else {
    add_attention(add, config, layer);
  }
  if (layer.has_experts) return add_experts(add, model, layer);
  add.same(layer.megatron + "mlp.linear_fc1.layer_norm_weight",
           layer.theirs + "post_attention_layernorm.weight", {config.hidden_size});
  const auto from = layer.theirs + "mlp.";
  add_gated(add,
            {layer.megatron + "mlp.linear_fc1.weight", layer.megatron + "mlp.linear_fc2.weight",
             from + "gate_proj.weight", from + "up_proj.weight", from + "down_proj.weight"},
            config.hidden_size, *config.ffn_hidden_size);
}

/// Layers that predict one more token, after the last one. `theirs` is the prefix of the text model's names.
void add_next_tokens(WeightBuilder& add, const ModelConfig& model, const std::string& theirs,
                     WeightMap& map) {
  const auto& config = model.transformer;
  const auto h = config.hidden_size;
  const bool mimo = model.architecture == Architecture::mimo;
  for (std::int64_t i = 0; i < config.mtp_num_layers.value_or(0); ++i) {
    const auto to = fmt::format("mtp.layers.{}.", i);
    const auto from = mimo ? fmt::format("{}mtp_layers.{}.", theirs, i)
                           : fmt::format("{}layers.{}.", theirs, config.num_layers + i);
    add.same(to + "enorm.weight", from + (mimo ? "token_layernorm.weight" : "enorm.weight"), {h});
    add.same(to + "hnorm.weight", from + (mimo ? "hidden_layernorm.weight" : "hnorm.weight"), {h});
    const auto joined = add.input(from + (mimo ? "input_proj.weight" : "eh_proj.weight"), {h, 2 * h});
    // MiMo puts the hidden state before the embedding.
    const auto first = mimo ? h : 0;
    add.output(to + "eh_proj.weight", {h, 2 * h}, WeightSplit::rows,
               {{joined, {{0, first}, {h, h}}, {0, 0}}, {joined, {{0, h - first}, {h, h}}, {0, h}}});
    add.same(to + "final_layernorm.weight",
             from + (mimo ? "final_layernorm.weight" : "shared_head.norm.weight"), {h});
    add_layer(add, model, {to + "transformer_layer.", from, config.num_moe_experts.has_value()});
    if (mimo) continue;
    map.copies[from + "embed_tokens.weight"] = theirs + "embed_tokens.weight";
    map.copies[from + "shared_head.head.weight"] =
        model.builder.share_embeddings_and_output_weights ? theirs + "embed_tokens.weight" : "lm_head.weight";
  }
}

/// The embedding, whose rows are padded, and the layers that convert hidden states back to words.
void add_words(WeightBuilder& add, const ModelConfig& model, const WeightOptions& options,
               const std::string& embedding, bool is_last) {
  const auto& config = model.transformer;
  const auto words = model.builder.vocab_size;
  const auto unit = options.vocab_multiple * config.tensor_model_parallel_size;
  const auto rows = (words + unit - 1) / unit * unit;
  const auto put = [&](const std::string& name, const std::string& theirs) {
    const auto input = add.input(theirs, {words, config.hidden_size});
    add.output(name, {rows, config.hidden_size}, WeightSplit::rows, {add.rows(input, 0, words, 0)});
  };
  if (!is_last) return put("embedding.word_embeddings.weight", embedding);
  if (model.builder.value_head)
    return add.same("output_layer.weight", options.value_head, {1, config.hidden_size});
  if (!model.builder.share_embeddings_and_output_weights) return put("output_layer.weight", "lm_head.weight");
  // The last stage has a copy of its own.
  if (config.pipeline_model_parallel_size > 1) put("output_layer.weight", embedding);
}

constexpr std::int64_t kMaxWidth = std::int64_t{1} << 24;
constexpr std::int64_t kMaxTowerWidth = std::int64_t{1} << 17;
constexpr std::int64_t kMaxTensors = std::int64_t{1} << 22;

Result<void> check_tower(const VisionConfig& vision) {
  for (const auto width :
       {vision.num_layers, vision.hidden_size, vision.num_attention_heads, vision.ffn_hidden_size,
        vision.in_channels, vision.patch_size, vision.temporal_patch_size, vision.out_hidden_size,
        vision.projector_ffn_hidden_size}) {
    if (width < 1 || width > kMaxTowerWidth)
      return fail(Errc::invalid_argument, "a size of the vision tower is {}, expected 1 to {}", width,
                  kMaxTowerWidth);
  }
  if (vision.hidden_size % vision.num_attention_heads != 0)
    return fail(Errc::invalid_argument, "the vision tower's {} heads do not divide its width {}",
                vision.num_attention_heads, vision.hidden_size);
  return {};
}

Result<void> check_model(const ModelConfig& model, const WeightOptions& options) {
  const auto& config = model.transformer;
  const auto& facts = facts_of(model.architecture);
  if (!facts.missing.empty() || model.architecture == Architecture::qwen3_vl ||
      model.architecture == Architecture::qwen3_vl_moe)
    return fail(Errc::unavailable, "the tensors of {} are not described", facts.name);
  for (const auto width :
       {config.hidden_size, config.num_attention_heads, *config.num_query_groups, *config.ffn_hidden_size,
        *config.kv_channels, config.q_lora_rank.value_or(1), config.kv_lora_rank, config.qk_head_dim,
        config.qk_pos_emb_head_dim, config.v_head_dim, config.moe_ffn_hidden_size.value_or(1),
        config.moe_shared_expert_intermediate_size.value_or(1), config.num_moe_experts.value_or(1),
        options.vocab_multiple, config.tensor_model_parallel_size}) {
    if (width < 1 || width > kMaxWidth)
      return fail(Errc::invalid_argument, "a size of {} is {}, expected 1 to {}", facts.name, width,
                  kMaxWidth);
  }
  if (has_vision(model.architecture)) TRY(check_tower(model.vision.value_or(VisionConfig{})));
  const auto mtp = config.mtp_num_layers.value_or(0);
  if (mtp > kMaxTensors ||
      (config.num_layers + mtp) * (2 * config.num_moe_experts.value_or(0) + 12) > kMaxTensors)
    return fail(Errc::invalid_argument, "{} layers with {} experts are more than {} tensors",
                config.num_layers, config.num_moe_experts.value_or(0), kMaxTensors);
  return {};
}

}  // namespace

std::string ModelWeight::name(std::int64_t layer_number, std::int64_t expert_number) const {
  auto result = pattern;
  for (const auto& [mark, number] : {std::pair{"{l}", layer_number}, std::pair{"{e}", expert_number}}) {
    const auto at = result.find(mark);
    if (at != std::string::npos) result.replace(at, 3, std::to_string(number));
  }
  return result;
}

Result<WeightMap> map_weights(const ModelConfig& model, const WeightOptions& options) {
  TRY(check_model(model, options));
  WeightMap map;
  const auto& config = model.transformer;
  const bool vision = has_vision(model.architecture);
  const std::string theirs = vision && options.nested_names ? "model.language_model." : "model.";
  WeightBuilder add(map, vision ? "language_model." : "");
  add.stage(WeightStage::first);
  if (vision) add_vision_tower(add, model, options.nested_names ? "model.visual." : "visual.");
  add_words(add, model, options, theirs + "embed_tokens.weight", false);
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    add.layer(layer);
    add_layer(
        add, model,
        {"decoder.layers.{l}.", fmt::format("{}layers.{}.", theirs, layer), config.layer_has_experts(layer)});
  }
  add.stage(WeightStage::last);
  add.same("decoder.final_layernorm.weight", theirs + "norm.weight", {config.hidden_size});
  add_words(add, model, options, theirs + "embed_tokens.weight", true);
  add_next_tokens(add, model, theirs, map);
  return map;
}

}  // namespace troupe::core
