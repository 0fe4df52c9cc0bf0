#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "core/models/weight_builder.hpp"

namespace troupe::core {

namespace {

/// A product with its bias.
struct Linear {
  std::string name, theirs;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

/// Either columns are cut, so that the bias is the same on every rank, or rows.
void add_linear(WeightBuilder& add, const Linear& linear, WeightSplit split) {
  add.same(linear.name + "weight", linear.theirs + "weight", {linear.rows, linear.columns}, split);
  add.same(linear.name + "bias", linear.theirs + "bias", {linear.rows},
           split == WeightSplit::columns ? WeightSplit::copy : split);
}

/// Converts all heads' queries, then all keys, then all values to [q, k, v] per head.
void add_fused_queries(WeightBuilder& add, const VisionConfig& vision, const std::string& name,
                       const std::string& theirs) {
  const auto h = vision.hidden_size;
  const auto width = h / vision.num_attention_heads;
  for (const char* kind : {"weight", "bias"}) {
    const auto shape = std::string_view(kind) == "bias" ? Shape{3 * h} : Shape{3 * h, h};
    const auto fused = add.input(theirs + kind, shape);
    std::vector<TensorPiece> pieces;
    for (std::int64_t head = 0; head < vision.num_attention_heads; ++head) {
      for (std::int64_t part = 0; part < 3; ++part)
        pieces.push_back(add.rows(fused, part * h + head * width, width, (3 * head + part) * width));
    }
    add.output(name + kind, shape, WeightSplit::rows, std::move(pieces));
  }
}

void add_gated_with_bias(WeightBuilder& add, const VisionConfig& vision, const std::string& name,
                         const std::string& theirs) {
  const auto h = vision.hidden_size;
  const auto width = vision.ffn_hidden_size;
  for (const char* kind : {"weight", "bias"}) {
    const bool is_bias = std::string_view(kind) == "bias";
    const auto shape = [&](std::int64_t rows) { return is_bias ? Shape{rows} : Shape{rows, h}; };
    const auto gate = add.input(theirs + "gate_proj." + kind, shape(width));
    const auto up = add.input(theirs + "up_proj." + kind, shape(width));
    add.output(name + "linear_fc1." + kind, shape(2 * width), WeightSplit::gate_up,
               {add.rows(gate, 0, width, 0), add.rows(up, 0, width, width)});
  }
  add_linear(add, {name + "linear_fc2.", theirs + "down_proj.", h, width}, WeightSplit::columns);
}

}  // namespace

void add_vision_tower(WeightBuilder& add, const ModelConfig& model, const std::string& theirs) {
  const auto& vision = *model.vision;
  const auto h = vision.hidden_size;
  // The configuration counts them once per chunk of the virtual pipeline.
  const auto layers =
      vision.num_layers /
      std::max<std::int64_t>(1, model.transformer.virtual_pipeline_model_parallel_size.value_or(1));
  add.prefix("vision_model.");
  add.same("patch_embed.proj.weight", theirs + "patch_embed.proj.weight",
           {h, vision.in_channels, vision.temporal_patch_size, vision.patch_size, vision.patch_size});
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const auto to = fmt::format("decoder.layers.{}.", layer);
    const auto from = fmt::format("{}blocks.{}.", theirs, layer);
    add.same(to + "self_attention.linear_qkv.layer_norm_weight", from + "norm1.weight", {h});
    add_fused_queries(add, vision, to + "self_attention.linear_qkv.", from + "attn.qkv.");
    add_linear(add, {to + "self_attention.linear_proj.", from + "attn.proj.", h, h}, WeightSplit::columns);
    add.same(to + "mlp.linear_fc1.layer_norm_weight", from + "norm2.weight", {h});
    add_gated_with_bias(add, vision, to + "mlp.", from + "mlp.");
  }
  add.same("decoder.final_layernorm.weight", theirs + "merger.ln_q.weight", {h});
  const auto merged = vision.projector_ffn_hidden_size;
  add_linear(add, {"projection.encoder.linear_fc1.", theirs + "merger.mlp.0.", merged, merged},
             WeightSplit::rows);
  add_linear(add,
             {"projection.encoder.linear_fc2.", theirs + "merger.mlp.2.", vision.out_hidden_size, merged},
             WeightSplit::columns);
  add.prefix("language_model.");
}

}  // namespace troupe::core
