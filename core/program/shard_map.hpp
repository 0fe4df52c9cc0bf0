#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/layout/buffer_layout.hpp"
#include "core/layout/row_layout.hpp"
#include "core/plan/placement.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// A rank's use of a tensor: read by the model, summed between microbatches, stepped.
enum class TensorRole : std::uint8_t { parameter, gradient, optimizer };

/// The ranges that a layout gathers and reduces together: its buckets, or all of a row-aligned one.
std::vector<ElementRange> flat_tensors(const BufferLayout& layout);
std::vector<ElementRange> flat_tensors(const RowLayout& layout);

/// The product of the sizes of the axes along which a tensor is sharded.
std::int64_t shard_count(const Placements& placements, const std::vector<int>& sizes);

/// A rank's part of a range placed by `placements`, whose flat axes are the last ones. The sizes of parts
/// differ by one element if they do not divide evenly; the longer ones come first.
ElementRange part_of(ElementRange range, const Placements& placements, const std::vector<int>& sizes,
                     const std::vector<int>& coordinates);

/// Which elements of which flat tensor a rank holds. All ranges are relative to the buffer of flat tensors.
class ShardMap {
 public:
  /// `sizes` and `coordinates` are per data-parallel axis, outermost first, like placements.
  /// Errc::invalid_argument for impossible placements or a flat tensor that its shards do not divide.
  static Result<ShardMap> create(std::vector<ElementRange> flats, StrategyPlacements placements,
                                 std::vector<int> sizes, std::vector<int> coordinates);

  std::size_t flats() const { return flats_.size(); }
  const std::vector<int>& coordinates() const { return coordinates_; }
  /// The whole range of a flat tensor.
  ElementRange whole(std::size_t flat) const { return flats_[flat]; }
  /// The range that this rank holds in a role.
  ElementRange range(TensorRole role, std::size_t flat) const;
  /// The range that this rank holds if placed by `placements`, whose flat axes are the last ones. The sizes
  /// of parts differ by one element if they do not divide evenly; the longer ones come first.
  ElementRange part(const Placements& placements, std::size_t flat) const;
  /// The same for the rank at `coordinates`.
  ElementRange part(const Placements& placements, std::size_t flat,
                    const std::vector<int>& coordinates) const;
  /// Whether this rank is the one that counts, among those that hold the same range in a role.
  bool answers(TensorRole role) const;

 private:
  const Placements& placements_of(TensorRole role) const;

  std::vector<ElementRange> flats_;
  StrategyPlacements placements_;
  std::vector<int> sizes_;
  std::vector<int> coordinates_;
};

}  // namespace troupe::core
