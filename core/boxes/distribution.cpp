#include "core/boxes/distribution.hpp"

#include <algorithm>
#include <utility>

namespace troupe::core {

std::vector<std::uint32_t> distribute(DistributionPurpose purpose, std::span<const HeldShard> shards,
                                      std::span<const HolderSet> sets, std::size_t members) {
  std::vector<const HeldShard*> order;
  order.reserve(shards.size());
  for (const auto& shard : shards) {
    if (shard.has_main || purpose == DistributionPurpose::load) order.push_back(&shard);
  }
  std::sort(order.begin(), order.end(), [&](const HeldShard* a, const HeldShard* b) {
    if (a->has_main != b->has_main) return a->has_main;
    const auto few = sets[a->holders].size();
    const auto many = sets[b->holders].size();
    if (few != many) return few < many;
    if (a->bytes != b->bytes) return a->bytes > b->bytes;
    if (a->key != b->key) return a->key < b->key;
    return *a->offset < *b->offset;
  });
  std::vector<std::uint32_t> owners(shards.size(), kNobody);
  std::vector<std::uint64_t> assigned(members);
  for (const auto* shard : order) {
    std::pair<std::uint64_t, std::uint32_t> least{UINT64_MAX, kNobody};
    for (auto member : sets[shard->holders]) least = std::min(least, {assigned[member], member});
    assigned[least.second] += shard->bytes;
    owners[static_cast<std::size_t>(shard - shards.data())] = least.second;
  }
  return owners;
}

}  // namespace troupe::core
