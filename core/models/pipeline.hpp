#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/ids.hpp"
#include "core/models/transformer_config.hpp"
#include "core/plan/mesh.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// Consecutive layers in one chunk of one pipeline stage.
struct LayerChunk {
  std::int64_t first = 0;  ///< index in the model
  std::int64_t count = 0;

  friend bool operator==(const LayerChunk&, const LayerChunk&) = default;
};

/// Chunks per stage: chunks[stage][virtual chunk]. Without num_layers_in_first_pipeline_stage and _last_, all
/// chunks have equally many layers; Errc::invalid_argument if they do not divide, with counts that would do.
Result<std::vector<std::vector<LayerChunk>>> place_layers(const TransformerConfig& config);

/// Layers per stage where they do not divide evenly: all middle stages have m layers; the first gets half of
/// the rest, rounded down, and the last the other half. Among the m with both in 1..m, the one is taken whose
/// first stage is nearest to m. Errc::invalid_argument if there is none, no stage, or more stages than
/// layers.
Result<std::vector<std::int64_t>> pipeline_shards(std::int64_t layers, std::int64_t stages);

/// A rank's coordinates, tensor parallel fastest: rank = ((pp * DP + dp) * CP + cp) * TP + tp.
struct MeshPlace {
  int tp = 0, cp = 0, dp = 0, pp = 0;

  friend bool operator==(const MeshPlace&, const MeshPlace&) = default;
};
MeshPlace place_of(Rank rank, const MeshSizes& sizes);
Rank rank_of(const MeshPlace& place, const MeshSizes& sizes);

}  // namespace troupe::core
