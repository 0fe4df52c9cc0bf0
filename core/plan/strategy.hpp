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

}  // namespace troupe::core
