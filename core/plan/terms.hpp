#pragma once

#include <cstdint>
#include <string_view>

#include "core/result.hpp"

namespace troupe::core {

/// Which training state is cut over the data-parallel ranks (core/plan/placement.hpp).
enum class Strategy : std::uint8_t { ddp, zero1, zero2, zero3, hsdp, hfsdp };
std::string_view name_of(Strategy strategy) noexcept;
Result<Strategy> strategy_from_name(std::string_view name);

/// What decides the order in which gradients are summed.
enum class Numerics : std::uint8_t {
  fast,     ///< the back-end of the collectives
  ordered,  ///< the tree over the lanes (core/plan/lanes.hpp): the same bits for any number of ranks
};
std::string_view name_of(Numerics numerics) noexcept;
Result<Numerics> numerics_from_name(std::string_view name);

/// A plan's own entries never broadcast; a trainer's own operations may.
enum class CollectiveKind : std::uint8_t { all_reduce, reduce_scatter, all_gather, all_to_all, broadcast };
std::string_view name_of(CollectiveKind kind) noexcept;

/// What a trainer does with a unit for one lane.
enum class Pass : std::uint8_t {
  forward,
  backward,
  weights,  ///< where backward takes two passes, the one that adds to gradients
};
std::string_view name_of(Pass pass) noexcept;

/// What a trainer does in one go with the consecutive units [first, end) for the lane of a round: forward
/// from the first one up, or backward from the last one down.
struct UnitPass {
  Pass kind = Pass::forward;
  int round = 0;  ///< of the rank's lanes, from 0; it may have none in the last rounds
  int first = 0;
  int end = 0;

  friend bool operator==(const UnitPass&, const UnitPass&) = default;
};

}  // namespace troupe::core
