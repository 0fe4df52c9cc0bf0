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

/// How ranks share a model, beside the data-parallel ones.
struct ModelAxes {
  std::int64_t tensor_parallel = 1;
  bool sequence_parallel = false;  ///< rows between layers are shared, too
  std::int64_t expert_parallel = 1;
  std::int64_t stages = 1;
  std::int64_t chunks = 1;  ///< of layers per stage
};

/// Of a model cut over `places` in order, each of which has as many layers: where they do not divide, the
/// first places have one more.
LayerChunk layers_of_place(std::int64_t layers, std::int64_t places, std::int64_t place);

/// A tensor as the first rank of a group has it.
struct RankTensor {
  UnitTensor whole;        ///< with its unit among those of the stage
  Shape shape;             ///< of the rank's part
  bool is_summed = false;  ///< the gradient is also a sum over the tensor-parallel ranks
};

/// What the first rank of a pipeline stage has of a model.
struct StageTensors {
  std::vector<RankTensor> tensors;  ///< chunk after chunk
  std::vector<LayerChunk> layers;   ///< of each chunk
  /// Of each chunk, the last one not included. In a model of one stage tensors of no unit stay resident; in a
  /// pipeline each is a unit.
  std::vector<std::pair<int, int>> units;
};

/// `tensors` are unit_tensors(). The copy of a tied embedding that the last stage has is not among them.
/// Errc::invalid_argument names the ranks and what they do not divide.
Result<StageTensors> stage_tensors(const ModelConfig& model, const std::vector<UnitTensor>& tensors,
                                   const ModelAxes& axes, std::int64_t stage);

}  // namespace troupe::core
