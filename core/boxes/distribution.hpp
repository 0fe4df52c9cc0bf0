#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/boxes/box.hpp"

namespace troupe::core {

enum class DistributionPurpose : std::uint8_t { save, load };

/// A shard held by members of a group, as the rule sees it.
struct HeldShard {
  std::uint32_t holders = 0;      ///< index in the sets of holders
  std::uint32_t key = 0;          ///< its position in the order of keys
  const Shape* offset = nullptr;  ///< together with the key it identifies the shard
  std::uint64_t bytes = 0;
  /// A member has the main replica. A shard without one is not saved, and is loaded after all others.
  bool has_main = true;
};

/// The members, counted from 0 in group order, that hold a shard: at least one, each once. Several shards may
/// share a set.
using HolderSet = std::vector<std::uint32_t>;

constexpr std::uint32_t kNobody = UINT32_MAX;

/// Which member of a group of ranks that hold copies of the same shards writes (or reads) each of them;
/// kNobody for those not saved. The greedy rule of Megatron-Core: shards with few holders first, then large
/// ones, then by key and offset, each to the holder with the fewest bytes so far, the first winning a tie.
std::vector<std::uint32_t> distribute(DistributionPurpose purpose, std::span<const HeldShard> shards,
                                      std::span<const HolderSet> sets, std::size_t members);

}  // namespace troupe::core
