#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/models/model_config.hpp"
#include "core/models/weight_plan.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// How a Megatron tensor is cut over tensor-parallel ranks.
enum class WeightSplit : std::uint8_t {
  copy,     ///< every rank has all of it
  rows,     ///< axis 0
  columns,  ///< axis 1
  gate_up,  ///< axis 0 of both halves: every rank has its own [gate; up]
};

/// The part of the pipeline that has a tensor.
enum class WeightStage : std::uint8_t { first, last, layer };

/// A Megatron tensor before it is cut.
struct ModelWeight {
  /// With "{l}" for the layer and "{e}" for the expert, whose numbers restart in every part of the model.
  std::string pattern;
  WeightSplit split = WeightSplit::copy;
  WeightStage stage = WeightStage::layer;
  std::int64_t layer = 0;
  std::int64_t expert = -1;  ///< -1: not an expert's

  std::string name(std::int64_t layer_number, std::int64_t expert_number) const;
};

/// The sources of Megatron's tensors. `plan` converts Hugging Face's whole tensors to Megatron's, whose
/// layers and experts are numbered over the whole model; `weights` has one entry per output of the plan.
struct WeightMap {
  WeightPlan plan;
  std::vector<ModelWeight> weights;
  /// Hugging Face names that hold the same as another: copy to original.
  std::map<std::string, std::string> copies;
};

struct WeightOptions {
  /// Rows of the embedding are padded to a multiple of this per tensor-parallel rank.
  std::int64_t vocab_multiple = 1;
  /// For models with vision: names begin with model.language_model. and model.visual., as since transformers
  /// 4.52.
  bool nested_names = false;
  /// The tensor that is a value model's head.
  std::string value_head = "score.weight";
};

/// Errc::unavailable for an architecture whose tensors are not described, Errc::invalid_argument for sizes
/// that do not match each other.
Result<WeightMap> map_weights(const ModelConfig& model, const WeightOptions& options);

/// From Megatron's whole tensors to those of all parts of a mesh: files are pp000_tp00.safetensors, and
/// pp000_ep000_etp00.safetensors for experts. With a virtual pipeline names begin with model0., model1., ...
/// Errc::invalid_argument names a tensor and the size that is not divisible.
Result<WeightPlan> plan_shards(const WeightMap& map, const TransformerConfig& config);

}  // namespace troupe::core
