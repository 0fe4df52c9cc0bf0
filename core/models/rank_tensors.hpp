#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/boxes/box.hpp"
#include "core/models/model_config.hpp"
#include "core/models/pipeline.hpp"
#include "core/models/unit_tensors.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// How ranks share a model, in addition to the data-parallel ones.
struct ModelAxes {
  std::int64_t tensor_parallel = 1;
  bool sequence_parallel = false;  ///< rows between layers are shared, too
  std::int64_t expert_parallel = 1;
  std::int64_t expert_tensor_parallel = 0;  ///< ranks that each expert is cut over; 0: tensor_parallel
  std::int64_t stages = 1;
  std::int64_t chunks = 1;  ///< chunks of layers per stage

  /// Parts of an expert that are on different data-parallel ranks.
  std::int64_t expert_parts() const {
    return expert_tensor_parallel == 0 ? 1 : expert_tensor_parallel / tensor_parallel;
  }
};

/// The layers of one place when a model is cut evenly over `places` in order: where they do not divide
/// evenly, the first places have one more.
LayerChunk layers_of_place(std::int64_t layers, std::int64_t places, std::int64_t place);

/// A tensor as held by the first rank of a group.
struct RankTensor {
  UnitTensor whole;  ///< its unit is the index among those of the stage
  Shape shape;       ///< of the rank's part
};

/// What the first rank of a pipeline stage holds of a model.
struct StageTensors {
  std::vector<RankTensor> tensors;  ///< chunk by chunk
  std::vector<LayerChunk> layers;   ///< of each chunk
  /// For each chunk, excluding the last one. In a model with a single stage, tensors without a unit stay
  /// resident; in a pipeline each is a unit.
  std::vector<std::pair<int, int>> units;
};

/// `tensors` are unit_tensors(). The last stage's copy of a tied embedding is not included.
/// Errc::invalid_argument names the ranks and what they do not divide.
Result<StageTensors> stage_tensors(const ModelConfig& model, const std::vector<UnitTensor>& tensors,
                                   const ModelAxes& axes, std::int64_t stage);

}  // namespace troupe::core
