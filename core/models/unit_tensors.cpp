#include "core/models/unit_tensors.hpp"

#include "core/errors.hpp"
#include "core/models/weight_map.hpp"

namespace troupe::core {

namespace {

std::optional<std::int64_t> unit_of(const ModelWeight& weight, const ModelConfig& model) {
  const bool tied = model.builder.share_embeddings_and_output_weights;
  if (weight.stage == WeightStage::layer) return weight.layer + (tied ? 0 : 1);
  if (tied) return std::nullopt;
  return weight.stage == WeightStage::first ? 0 : model.transformer.num_layers + 1;
}

}  // namespace

Result<std::vector<UnitTensor>> unit_tensors(const ModelConfig& model) {
  const auto map = TRY(map_weights(model, {}));
  std::vector<UnitTensor> tensors;
  for (const auto& input : map.plan.inputs) {
    const bool is_embedding = input.name.ends_with("embed_tokens.weight") || input.name == "lm_head.weight";
    tensors.push_back({input.name, input.shape, std::nullopt, is_embedding});
  }
  for (std::size_t i = 0; i < map.weights.size(); ++i) {
    for (const auto& piece : map.plan.outputs[i].pieces) {
      tensors[piece.input].unit = unit_of(map.weights[i], model);
    }
  }
  return tensors;
}

}  // namespace troupe::core
