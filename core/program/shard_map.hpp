#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/layout/buffer_layout.hpp"
#include "core/layout/row_layout.hpp"
#include "core/plan/placement.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// What a tensor is to a rank: read by the model, summed between microbatches, stepped.
enum class TensorRole : std::uint8_t { parameter, gradient, optimizer };

/// The ranges that a layout gathers and reduces together: its buckets, or all of a row-aligned one.
std::vector<ElementRange> flat_tensors(const BufferLayout& layout);
std::vector<ElementRange> flat_tensors(const RowLayout& layout);

/// The product of the sizes of the axes along which a tensor is sharded.
std::int64_t shard_count(const Placements& placements, const std::vector<int>& sizes);

/// What a rank holds of a range that lies by `placements`, whose flat axes are the last ones. Parts differ by
/// one element where they do not divide; the first ones are the longer.
ElementRange part_of(ElementRange range, const Placements& placements, const std::vector<int>& sizes,
                     const std::vector<int>& coordinates);

/// Which elements of which flat tensor a rank holds. All ranges are of the buffer the flat tensors lie in.
class ShardMap {
 public:
  /// `sizes` and `coordinates` are per data-parallel axis, outermost first, as placements are.
  /// Errc::invalid_argument where placements cannot be or a flat tensor does not divide by its shards.
  static Result<ShardMap> create(std::vector<ElementRange> flats, StrategyPlacements placements,
                                 std::vector<int> sizes, std::vector<int> coordinates);

  std::size_t flats() const { return flats_.size(); }
  const std::vector<int>& coordinates() const { return coordinates_; }
  /// The whole of a flat tensor.
  ElementRange whole(std::size_t flat) const { return flats_[flat]; }
  /// What this rank holds of it in a role.
  ElementRange range(TensorRole role, std::size_t flat) const;
  /// What this rank holds of it when it lies by `placements`, whose flat axes are the last ones. Parts differ
  /// by one element where they do not divide; the first ones are the longer.
  ElementRange part(const Placements& placements, std::size_t flat) const;
  /// The same of the rank at `coordinates`.
  ElementRange part(const Placements& placements, std::size_t flat,
                    const std::vector<int>& coordinates) const;
  /// Of the ranks that hold the same range in a role one answers for it, where it must count once.
  bool answers(TensorRole role) const;

 private:
  const Placements& placements_of(TensorRole role) const;

  std::vector<ElementRange> flats_;
  StrategyPlacements placements_;
  std::vector<int> sizes_;
  std::vector<int> coordinates_;
};

}  // namespace troupe::core
