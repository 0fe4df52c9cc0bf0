#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/layout/buffer_layout.hpp"
#include "core/plan/terms.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// How a tensor is placed on the ranks of one data-parallel axis.
enum class Placement : std::uint8_t {
  replicated,  ///< R: each rank has all of it
  partial,     ///< P: each rank has a summand of all of it
  flat_shard,  ///< F: each rank has an even part of it
};

/// One placement per data-parallel axis, from the outermost (slowest) to the innermost.
using Placements = std::vector<Placement>;

/// Where a strategy places the three kinds of tensors. Gradients are those between microbatches; after the
/// last one they are placed like the optimizer's state.
struct StrategyPlacements {
  Placements parameters;
  Placements gradients;
  Placements optimizer;

  friend bool operator==(const StrategyPlacements&, const StrategyPlacements&) = default;
};

/// One axis, or (outer, inner) for hsdp and hfsdp, or for a strategy of one axis with several optimizer
/// instances: then ranks of the inner axis share one copy of the optimizer. Errc::invalid_argument if the
/// strategy does not support instances.
Result<StrategyPlacements> placements_of(Strategy strategy, int optimizer_instances = 1);

/// What moves a tensor from one placement to another along one axis.
enum class Redistribution : std::uint8_t {
  none,
  all_reduce,      ///< P -> R
  reduce_scatter,  ///< P -> F
  all_gather,      ///< F -> R
  slice,           ///< R -> F: a view, without traffic
};

/// Errc::invalid_argument where no collective does it: no placement can be turned back into partial.
Result<Redistribution> redistribution(Placement from, Placement to);

struct AxisRedistribution {
  std::size_t axis = 0;
  Redistribution what = Redistribution::none;

  friend bool operator==(const AxisRedistribution&, const AxisRedistribution&) = default;
};

/// The collectives from one list of placements to another, in order. Those that make the tensor smaller go
/// from the inner axis outwards, those that make it larger from the outer axis inwards, to minimise traffic.
Result<std::vector<AxisRedistribution>> redistributions(const Placements& from, const Placements& to);

/// The elements of a flat buffer that a rank holds; the innermost axis cuts first. `sizes` and `coordinates`
/// are per axis, outermost first. Flat axes must be the last ones of the list and divide the buffer.
Result<ElementRange> local_range(std::int64_t elements, const Placements& placements,
                                 const std::vector<int>& sizes, const std::vector<int>& coordinates);

/// A rank's use of a tensor: read by the model, summed between microbatches, stepped.
enum class TensorRole : std::uint8_t { parameter, gradient, optimizer };

/// The product of the sizes of the axes along which a tensor is sharded.
std::int64_t shard_count(const Placements& placements, const std::vector<int>& sizes);

/// A rank's part of a range placed by `placements`, whose flat axes are the last ones. The sizes of parts
/// differ by one element if they do not divide evenly; the longer ones come first.
ElementRange part_of(ElementRange range, const Placements& placements, const std::vector<int>& sizes,
                     const std::vector<int>& coordinates);

}  // namespace troupe::core
