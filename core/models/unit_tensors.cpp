#include "core/models/unit_tensors.hpp"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "core/errors.hpp"

namespace troupe::core {

namespace {

bool is_used_in_parts(const ModelWeight& weight) {
  if (weight.split != WeightSplit::copy) return false;
  constexpr std::string_view kMarks[] = {".q_layernorm.", ".k_layernorm.", ".router.", ".gate_weight"};
  return std::any_of(std::begin(kMarks), std::end(kMarks),
                     [&](std::string_view mark) { return weight.pattern.find(mark) != std::string::npos; });
}

/// The axis of Hugging Face's tensor, whose layout is Megatron's; an axis of experts comes first.
std::optional<std::size_t> split_of(const ModelWeight& weight, const UnitTensor& tensor) {
  if (weight.split == WeightSplit::copy) return std::nullopt;
  const std::size_t axis = weight.split == WeightSplit::columns ? 1 : 0;
  return axis + (tensor.has_all_experts ? 1 : 0);
}

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
      const auto& weight = map.weights[i];
      auto& tensor = tensors[piece.input];
      tensor.unit = unit_of(weight, model);
      tensor.stage = weight.stage;
      tensor.layer = weight.layer;
      tensor.has_all_experts = weight.expert >= 0 && tensor.shape.size() > 2;
      tensor.expert = tensor.has_all_experts ? 0 : weight.expert;
      tensor.split = split_of(weight, tensor);
      tensor.is_used_in_parts = is_used_in_parts(weight);
    }
  }
  return tensors;
}

}  // namespace troupe::core
