#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/boxes/box.hpp"
#include "core/interop/pickle.hpp"
#include "core/interop/torch_archive.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// An attribute of a pickled object's state: of a dict, or of the pair of dicts that classes with slots have.
std::optional<PickleNode> state_field(const PickleNode& state, std::string_view name);

/// A rank's place along one dimension of a DTensor's mesh.
struct DimensionPlace {
  std::int64_t coordinate = 0;
  std::int64_t size = 1;
};

/// The places of `rank` along the dimensions of a pickled DeviceMesh, as several versions of PyTorch keep it.
/// Nothing: it does not say, or the rank is not of it.
std::optional<std::vector<DimensionPlace>> mesh_places(const TorchArchive& archive, const PickleNode& mesh,
                                                       std::int64_t rank);

/// Part of what a rank holds of a tensor.
struct PlacedBox {
  Box box;   ///< in the complete tensor
  Shape at;  ///< where it begins in the rank's part
};

/// How a DTensor is spread.
struct Placed {
  bool is_known = false;  ///< what follows, and not only the axis
  std::vector<PlacedBox> boxes;
  Shape local;  ///< the shape of all of them together
  std::optional<std::size_t>
      axis;             ///< along which ranks' parts follow each other where nothing else is known
  std::string refusal;  ///< why it cannot be put together; empty: it can
};

/// What a rank at these places holds of a tensor of this shape. Shard, Replicate and _StridedShard (FSDP over
/// tensor parallel parts) are known, along any number of dimensions. Without places only one Shard, along the
/// last one.
Placed placed_parts(const PickleNode& placements, const std::optional<std::vector<DimensionPlace>>& places,
                    const Shape& shape);

}  // namespace troupe::core
