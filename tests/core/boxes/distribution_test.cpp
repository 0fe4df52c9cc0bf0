#include "core/boxes/distribution.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace troupe::core {
namespace {

/// A shard of one axis as a member has it; replica 0 is the main one.
struct Part {
  std::string key;
  std::int64_t offset = 0;
  std::uint64_t bytes = 0;
  int replica = 0;
};
using Members = std::vector<std::vector<Part>>;
using Name = std::pair<std::string, std::int64_t>;
/// The owners of what somebody writes or reads.
using Owners = std::map<Name, int>;

constexpr int kWorld = 8;

/// Megatron's example with tensor parallel 2: ranks alternate between the tensor halves.
std::vector<Part> example(int rank) {
  const int tensor_rank = rank % 2;
  const int data_rank = rank / 2;
  return {{"key_TP_repl1", 10 * tensor_rank, 40, data_rank},
          {"key_TP_repl2", 10 * tensor_rank, 40, data_rank},
          {"keyB", 20 * rank, 80, 0},
          {"keyC", 0, 400, rank},
          {"keyD", 0, 4000, rank},
          {"keyE", 0, 400, rank}};
}

Members world() {
  Members members;
  for (int rank = 0; rank < kWorld; ++rank) members.push_back(example(rank));
  return members;
}

Members data_group(int tensor_rank) {
  Members members;
  for (int rank = tensor_rank; rank < kWorld; rank += 2) members.push_back(example(rank));
  return members;
}

Owners owners_of(DistributionPurpose purpose, const Members& members) {
  struct Held {
    std::uint64_t bytes = 0;
    bool has_main = false;
    HolderSet holders;
  };
  std::map<Name, Held> all;
  std::map<std::string, std::uint32_t> keys;
  for (std::uint32_t member = 0; member < members.size(); ++member) {
    for (const auto& part : members[member]) {
      auto& held = all[{part.key, part.offset}];
      held.bytes = part.bytes;
      held.has_main |= part.replica == 0;
      held.holders.push_back(member);
      keys[part.key];
    }
  }
  std::uint32_t place = 0;
  for (auto& [key, at] : keys) at = place++;
  std::vector<Shape> offsets;
  for (const auto& [name, held] : all) offsets.push_back({name.second});
  std::vector<HeldShard> shards;
  std::vector<HolderSet> sets;
  for (const auto& [name, held] : all) {
    const auto index = static_cast<std::uint32_t>(sets.size());
    shards.push_back({index, keys[name.first], &offsets[index], held.bytes, held.has_main});
    sets.push_back(held.holders);
  }

  const auto chosen = distribute(purpose, shards, sets, members.size());

  Owners owners;
  std::size_t i = 0;
  for (const auto& [name, held] : all) {
    if (const auto owner = chosen[i++]; owner != kNobody) owners[name] = static_cast<int>(owner);
  }
  return owners;
}

void forget(Owners& owners, const std::string& key) {
  std::erase_if(owners, [&](const auto& entry) { return entry.first.first == key; });
}

// Covers save-10, save-11.
TEST(Distribution, OverTheWholeWorldSavesAndLoadsLikeMegatron) {
  Owners expected{{{"key_TP_repl1", 0}, 0},  {{"key_TP_repl1", 10}, 1}, {{"key_TP_repl2", 0}, 2},
                  {{"key_TP_repl2", 10}, 3}, {{"keyD", 0}, 4},          {{"keyC", 0}, 5},
                  {{"keyE", 0}, 6}};
  for (int rank = 0; rank < kWorld; ++rank) expected[{"keyB", 20 * rank}] = rank;

  for (const auto purpose : {DistributionPurpose::save, DistributionPurpose::load}) {
    EXPECT_EQ(owners_of(purpose, world()), expected);
  }
}

// Covers save-10.
TEST(Distribution, OverADataGroupSavesItsMainReplicas) {
  auto first = owners_of(DistributionPurpose::save, data_group(0));
  auto second = owners_of(DistributionPurpose::save, data_group(1));

  forget(first, "keyB");
  forget(second, "keyB");
  EXPECT_EQ(first, (Owners{{{"keyD", 0}, 0},
                           {{"keyC", 0}, 1},
                           {{"keyE", 0}, 2},
                           {{"key_TP_repl1", 0}, 3},
                           {{"key_TP_repl2", 0}, 3}}));
  EXPECT_EQ(second, (Owners{{{"key_TP_repl1", 10}, 0}, {{"key_TP_repl2", 10}, 1}}));
}

// Covers save-11.
TEST(Distribution, OverADataGroupLoadsOtherGroupsShardsLast) {
  const auto first = owners_of(DistributionPurpose::load, data_group(0));
  auto second = owners_of(DistributionPurpose::load, data_group(1));

  EXPECT_EQ(first, owners_of(DistributionPurpose::save, data_group(0)));
  forget(second, "keyB");
  // Were they not the last ones, they would come before the shards of ten elements.
  EXPECT_EQ(second, (Owners{{{"key_TP_repl1", 10}, 0},
                            {{"key_TP_repl2", 10}, 1},
                            {{"keyD", 0}, 2},
                            {{"keyC", 0}, 3},
                            {{"keyE", 0}, 0}}));
}

TEST(Distribution, GivesSharedShardsToAnIdleRank) {
  Members members(kWorld);
  members[0].push_back({"a", 0, 40, 0});
  members[1].push_back({"b", 0, 40, 0});
  for (int rank = 0; rank < kWorld; ++rank)
    members[static_cast<std::size_t>(rank)].push_back({"c", 0, 40, rank});

  const auto owners = owners_of(DistributionPurpose::save, members);

  EXPECT_EQ(owners, (Owners{{{"a", 0}, 0}, {{"b", 0}, 1}, {{"c", 0}, 2}}));
}

// Covers save-15.
TEST(Distribution, InGroupsOfOneReadsAllButMainReplicas) {
  for (int rank = 0; rank < kWorld; ++rank) {
    const Members members{{{"c", 0, 40, rank}}};

    EXPECT_EQ(owners_of(DistributionPurpose::save, members).size(), rank == 0 ? 1U : 0U);
    EXPECT_EQ(owners_of(DistributionPurpose::load, members).size(), 1U);
  }
}

RC_GTEST_PROP(Distribution, GivesEveryShardToOneHolderAndBalancesThem, ()) {
  const int ranks = *rc::gen::inRange(1, 7);
  Members members(static_cast<std::size_t>(ranks));
  std::map<Name, std::set<int>> holders;
  std::uint64_t largest = 0;
  for (int shard = *rc::gen::inRange(1, 12); shard > 0; --shard) {
    const Name name{"s" + std::to_string(shard), 0};
    const auto bytes = *rc::gen::inRange<std::uint64_t>(0, 50);
    const bool all = *rc::gen::arbitrary<bool>();
    for (int rank = 0; rank < ranks; ++rank) {
      if (!all && *rc::gen::arbitrary<bool>()) continue;
      members[static_cast<std::size_t>(rank)].push_back(
          {name.first, 0, bytes, static_cast<int>(holders[name].size())});
      holders[name].insert(rank);
      largest = std::max(largest, bytes);
    }
  }

  const auto owners = owners_of(DistributionPurpose::save, members);

  RC_ASSERT(owners.size() == holders.size());
  for (const auto& [name, owner] : owners) RC_ASSERT(holders[name].contains(owner));
  const bool shared_by_all = std::all_of(holders.begin(), holders.end(), [&](const auto& entry) {
    return entry.second.size() == static_cast<std::size_t>(ranks);
  });
  if (!shared_by_all) return;
  std::vector<std::uint64_t> load(static_cast<std::size_t>(ranks));
  for (const auto& [name, owner] : owners) {
    for (const auto& part : members[static_cast<std::size_t>(owner)]) {
      if (part.key == name.first) load[static_cast<std::size_t>(owner)] += part.bytes;
    }
  }
  const auto [least, most] = std::minmax_element(load.begin(), load.end());
  RC_ASSERT(*most - *least <= largest);
}

// What a thousand ranks hold alike is one set.
TEST(Distribution, AThousandRanksShareTwoThousandShards) {
  HolderSet everybody(1024);
  for (std::uint32_t rank = 0; rank < everybody.size(); ++rank) everybody[rank] = rank;
  const std::vector<HolderSet> sets{everybody};
  const Shape offset{0};
  std::vector<HeldShard> shards;
  for (std::uint32_t i = 0; i < 2000; ++i) shards.push_back({0, i, &offset, 4096});

  const auto owners = distribute(DistributionPurpose::save, shards, sets, everybody.size());

  std::vector<int> counts(everybody.size());
  for (auto owner : owners) ++counts[owner];
  EXPECT_EQ(*std::max_element(counts.begin(), counts.end()), 2);
  EXPECT_EQ(*std::min_element(counts.begin(), counts.end()), 1);
}

}  // namespace
}  // namespace troupe::core
