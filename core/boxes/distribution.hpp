#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/boxes/box.hpp"

namespace troupe::core {

enum class DistributionPurpose : std::uint8_t { save, load };

/// A shard that members of a group hold, as the rule sees it.
struct HeldShard {
  std::uint32_t holders = 0;      ///< index of the sets of holders
  std::uint32_t key = 0;          ///< the place of its key in the order of keys
  const Shape* offset = nullptr;  ///< with the key it names the shard
  std::uint64_t bytes = 0;
  /// A member has the main replica. Nobody saves a shard without one, and it is loaded after all others.
  bool has_main = true;
};

/// The members, counted from 0 in group order, that hold a shard: at least one, each once. Shards may share
/// a set.
using HolderSet = std::vector<std::uint32_t>;

constexpr std::uint32_t kNobody = UINT32_MAX;

/// Which of a group of ranks that hold copies of the same shards writes (or reads) which one; kNobody for
/// what is not saved. The greedy rule of Megatron-Core: shards with few holders first, then large ones, then
/// by key and offset, each to the holder with the fewest bytes so far, of equal ones to the first.
std::vector<std::uint32_t> distribute(DistributionPurpose purpose, std::span<const HeldShard> shards,
                                      std::span<const HolderSet> sets, std::size_t members);

}  // namespace troupe::core
