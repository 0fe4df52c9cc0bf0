#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/boxes/box.hpp"
#include "core/models/model_config.hpp"
#include "core/models/weight_map.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// A tensor of a model, by its Hugging Face name, and the unit that reads it in forward.
struct UnitTensor {
  std::string name;
  Shape shape;
  std::optional<std::int64_t> unit;  ///< none: it stays resident
  bool is_embedding = false;         ///< the embedding table, or the output layer
  WeightStage stage = WeightStage::layer;
  std::int64_t layer = 0;            ///< with WeightStage::layer
  std::int64_t expert = -1;          ///< the first expert it belongs to; -1: none
  bool has_all_experts = false;      ///< all of a layer's experts, consecutively along axis 0
  std::optional<std::size_t> split;  ///< the axis cut over tensor-parallel ranks; none: each has all of it
  /// Each tensor-parallel rank has all of it, but uses it only for its own heads or part of the experts'
  /// output: the gradient is a sum over the ranks. Norms of queries' and keys' heads, routers, gates.
  bool is_used_in_parts = false;
};

/// The tensors of a model in the order of forward. Units are the embedding (with the vision tower, if there
/// is one), each layer, and what follows the layers: the last norm, the output layer, layers that predict
/// more than one token. With tied embeddings both ends read one table, so the embedding and what follows the
/// layers have no unit. The tensors and errors are those of map_weights().
Result<std::vector<UnitTensor>> unit_tensors(const ModelConfig& model);

}  // namespace troupe::core
