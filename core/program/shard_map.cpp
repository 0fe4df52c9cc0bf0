#include "core/program/shard_map.hpp"

#include "core/errors.hpp"

namespace troupe::core {

std::vector<ElementRange> flat_tensors(const BufferLayout& layout) {
  std::vector<ElementRange> flats;
  for (const BucketPlace& bucket : layout.buckets) flats.push_back({bucket.start, bucket.end});
  return flats;
}

std::vector<ElementRange> flat_tensors(const RowLayout& layout) {
  return {{0, layout.elements}};
}

std::int64_t shard_count(const Placements& placements, const std::vector<int>& sizes) {
  std::int64_t count = 1;
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    if (placements[axis] == Placement::flat_shard) count *= sizes[axis];
  }
  return count;
}

ElementRange part_of(ElementRange range, const Placements& placements, const std::vector<int>& sizes,
                     const std::vector<int>& coordinates) {
  for (std::size_t axis = placements.size(); axis-- > 0;) {
    if (placements[axis] == Placement::flat_shard) range = even_part(range, sizes[axis], coordinates[axis]);
  }
  return range;
}

Result<ShardMap> ShardMap::create(std::vector<ElementRange> flats, StrategyPlacements placements,
                                  std::vector<int> sizes, std::vector<int> coordinates) {
  for (const Placements* role : {&placements.parameters, &placements.gradients, &placements.optimizer}) {
    for (const ElementRange& flat : flats) TRY(local_range(flat.size(), *role, sizes, coordinates));
  }
  ShardMap map;
  map.flats_ = std::move(flats);
  map.placements_ = std::move(placements);
  map.sizes_ = std::move(sizes);
  map.coordinates_ = std::move(coordinates);
  return map;
}

const Placements& ShardMap::placements_of(TensorRole role) const {
  switch (role) {
    case TensorRole::parameter:
      return placements_.parameters;
    case TensorRole::gradient:
      return placements_.gradients;
    case TensorRole::optimizer:
      break;
  }
  return placements_.optimizer;
}

ElementRange ShardMap::range(TensorRole role, std::size_t flat) const {
  return part(placements_of(role), flat);
}

ElementRange ShardMap::part(const Placements& placements, std::size_t flat) const {
  return part(placements, flat, coordinates_);
}

ElementRange ShardMap::part(const Placements& placements, std::size_t flat,
                            const std::vector<int>& coordinates) const {
  CHECK(placements.size() == sizes_.size() && coordinates.size() == sizes_.size(),
        "placements and coordinates are those of the map's axes");
  return part_of(flats_[flat], placements, sizes_, coordinates);
}

bool ShardMap::answers(TensorRole role) const {
  const Placements& placements = placements_of(role);
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    if (placements[axis] == Placement::replicated && coordinates_[axis] != 0) return false;
  }
  return true;
}

}  // namespace troupe::core
