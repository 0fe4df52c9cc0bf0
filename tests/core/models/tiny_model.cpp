#include "tests/core/models/tiny_model.hpp"

#include <nlohmann/json.hpp>

#include "tests/core/models/example_configs.hpp"

namespace troupe::core {

using Json = nlohmann::json;

ModelConfig tiny(const std::string& published_model, const Tiny& sizes) {
  auto json = Json::parse(published(published_model));
  const Json values = {{"num_hidden_layers", sizes.layers},
                       {"hidden_size", sizes.hidden},
                       {"num_attention_heads", sizes.heads},
                       {"num_key_value_heads", sizes.groups},
                       {"head_dim", sizes.head_dim},
                       {"intermediate_size", sizes.ffn},
                       {"vocab_size", sizes.vocab},
                       {"moe_intermediate_size", sizes.ffn},
                       {"num_experts", sizes.experts},
                       {"num_local_experts", sizes.experts},
                       {"n_routed_experts", sizes.experts},
                       {"num_experts_per_tok", 2},
                       {"n_group", 1},
                       {"topk_group", 1},
                       {"first_k_dense_replace", 1},
                       {"q_lora_rank", 6},
                       {"kv_lora_rank", 4},
                       {"qk_nope_head_dim", 2},
                       {"qk_rope_head_dim", 2},
                       {"v_head_dim", 4},
                       {"shared_expert_intermediate_size", 2 * sizes.ffn}};
  for (const auto& [key, value] : values.items()) {
    if (json.contains(key) || key == "head_dim") json[key] = value;
  }
  if (json.contains("vision_config")) json["vision_config"]["out_hidden_size"] = sizes.hidden;
  ConvertOptions options;
  options.mesh = sizes.mesh;
  options.virtual_pipeline = sizes.vpp;
  if (json.contains("vision_config")) json["vision_config"]["intermediate_size"] = 3456;
  auto model = convert(json.dump(), options);
  if (model.vision) {
    // The tower is fixed, and too large for a test.
    model.vision->num_layers = 2 * std::max(1, sizes.vpp);
    model.vision->hidden_size = 16;
    model.vision->num_attention_heads = 4;
    model.vision->ffn_hidden_size = 12;
    model.vision->patch_size = 2;
    model.vision->projector_ffn_hidden_size = 64;
  }
  return model;
}

Tensors numbered(const std::vector<PlannedTensor>& tensors) {
  Tensors result;
  std::int64_t next = 1;
  for (const auto& tensor : tensors) {
    auto& values = result[{tensor.file, tensor.name}];
    values.resize(static_cast<std::size_t>(elements_of(tensor.shape)));
    for (auto& value : values) value = next++;
  }
  return result;
}

Tensors execute(const WeightPlan& plan, const Tensors& inputs) {
  Tensors result;
  for (const auto& output : plan.outputs) {
    auto& values = result[{output.tensor.file, output.tensor.name}];
    values.assign(static_cast<std::size_t>(elements_of(output.tensor.shape)), 0);
    for (const auto& piece : output.pieces) {
      const auto& input = plan.inputs[piece.input];
      const auto& source = inputs.at({input.file, input.name});
      const auto from = copy_runs(Box::whole(input.shape), piece.from, piece.from);
      const auto to = copy_runs(piece.target(), Box::whole(output.tensor.shape), piece.target());
      // Both walk the same elements in the same order.
      std::vector<std::int64_t> taken;
      for (const auto& run : from) {
        for (std::int64_t i = 0; i < run.elements; ++i)
          taken.push_back(source.at(static_cast<std::size_t>(run.from + i)));
      }
      std::size_t next = 0;
      for (const auto& run : to) {
        for (std::int64_t i = 0; i < run.elements; ++i)
          values.at(static_cast<std::size_t>(run.to + i)) = taken.at(next++);
      }
    }
  }
  return result;
}

}  // namespace troupe::core
