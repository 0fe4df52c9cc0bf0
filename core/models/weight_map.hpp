#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/models/model_config.hpp"
#include "core/models/weight_plan.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// How a tensor of Megatron is cut over tensor parallel ranks.
enum class WeightSplit : std::uint8_t {
  copy,     ///< every rank has all of it
  rows,     ///< axis 0
  columns,  ///< axis 1
  gate_up,  ///< axis 0 of both halves: every rank has [gate; up] of its own
};

/// Where in the pipeline a tensor is.
enum class WeightStage : std::uint8_t { first, last, layer };

/// A tensor of Megatron before it is cut.
struct ModelWeight {
  /// With "{l}" for the layer and "{e}" for the expert, which are counted anew in every part of the model.
  std::string pattern;
  WeightSplit split = WeightSplit::copy;
  WeightStage stage = WeightStage::layer;
  std::int64_t layer = 0;
  std::int64_t expert = -1;  ///< -1: of no expert

  std::string name(std::int64_t layer_number, std::int64_t expert_number) const;
};

/// Where Megatron's tensors come from. `plan` leads from Hugging Face's to Megatron's whole tensors, whose
/// layers and experts are counted over the whole model; `weights` has one entry for each of its outputs.
struct WeightMap {
  WeightPlan plan;
  std::vector<ModelWeight> weights;
  /// Names of Hugging Face that hold the same as another: copy to original.
  std::map<std::string, std::string> copies;
};

struct WeightOptions {
  /// Rows of the embedding are padded to a multiple of this for every tensor parallel rank.
  std::int64_t vocab_multiple = 1;
  /// Of models with vision: names begin with model.language_model. and model.visual., as since transformers
  /// 4.52.
  bool nested_names = false;
  /// The tensor that a value model's head is.
  std::string value_head = "score.weight";
};

/// Errc::unavailable for an architecture whose tensors are not described, Errc::invalid_argument for sizes
/// that do not fit each other.
Result<WeightMap> map_weights(const ModelConfig& model, const WeightOptions& options);

/// From Megatron's whole tensors to those of all parts of a mesh: files are pp000_tp00.safetensors, and
/// pp000_ep000_etp00.safetensors for experts. With a virtual pipeline names begin with model0., model1., ...
/// Errc::invalid_argument names a tensor and the size that does not divide.
Result<WeightPlan> plan_shards(const WeightMap& map, const TransformerConfig& config);

}  // namespace troupe::core
