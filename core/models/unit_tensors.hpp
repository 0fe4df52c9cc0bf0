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

/// A tensor of a model, by Hugging Face's name, and the unit of forward that reads it.
struct UnitTensor {
  std::string name;
  Shape shape;
  std::optional<std::int64_t> unit;  ///< none: it stays resident
  bool is_embedding = false;         ///< the table of words, or the output layer over them
  WeightStage stage = WeightStage::layer;
  std::int64_t layer = 0;            ///< of WeightStage::layer
  std::int64_t expert = -1;          ///< the first one that it is of; -1: of none
  bool has_all_experts = false;      ///< of a layer, one after another on axis 0
  std::optional<std::size_t> split;  ///< the axis that tensor-parallel ranks share; none: each has all of it
  /// Each tensor-parallel rank has all of it and uses it for its heads, or for its part of what experts give,
  /// alone: the gradient is a sum over them. Norms of queries' and keys' heads, routers, gates.
  bool is_used_in_parts = false;
};

/// The tensors of a model in the order of forward. Units are the embedding (with a vision tower, where there
/// is one), each layer, and what follows them: the last norm, the output layer, layers that predict more than
/// one token. With tied embeddings both ends read one table, so the embedding and what follows the layers are
/// of no unit. As map_weights() has them; errors are its.
Result<std::vector<UnitTensor>> unit_tensors(const ModelConfig& model);

}  // namespace troupe::core
