#include "core/checkpoint/distribution.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>

namespace troupe::core {
namespace {

using testing::HasSubstr;
using Members = std::vector<std::vector<ShardedTensor>>;
/// Key and offset along axis 0 to owner.
using Owners = std::map<std::pair<std::string, std::int64_t>, int>;

constexpr int kWorld = 8;

ShardedTensor part(const std::string& key, std::int64_t elements, std::int64_t piece, std::int64_t pieces,
                   int replica) {
  const std::vector<RankOffset> offsets{{0, piece, pieces}};
  return ShardedTensor::from_rank_offsets(key, DType::f32, {elements}, offsets, {.replica_id = {replica}})
      .value();
}

/// Megatron's example with tensor parallel 2: ranks alternate between the tensor halves.
std::vector<ShardedTensor> example(int rank) {
  const int tensor_rank = rank % 2;
  const int data_rank = rank / 2;
  return {part("key_TP_repl1", 10, tensor_rank, 2, data_rank),
          part("key_TP_repl2", 10, tensor_rank, 2, data_rank),
          part("keyB", 20, rank, kWorld, 0),
          part("keyC", 100, 0, 1, rank),
          part("keyD", 1000, 0, 1, rank),
          part("keyE", 100, 0, 1, rank)};
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

Distribution distributed(DistributionPurpose purpose, const Members& members) {
  return distribute(purpose, members).value();
}

Owners owners_of(const Distribution& distribution) {
  Owners owners;
  for (const auto& assignment : distribution.assignments) {
    owners[{assignment.key, assignment.offset.at(0)}] = assignment.owner;
  }
  return owners;
}

std::vector<std::string> cross_group_keys(const Distribution& distribution) {
  std::vector<std::string> keys;
  for (const auto& assignment : distribution.assignments) {
    if (assignment.cross_group) keys.push_back(assignment.key);
  }
  return keys;
}

TEST(Distribution, OverTheWholeWorldIsMegatronsForSaveAndLoad) {
  Owners expected{{{"key_TP_repl1", 0}, 0},  {{"key_TP_repl1", 10}, 1}, {{"key_TP_repl2", 0}, 2},
                  {{"key_TP_repl2", 10}, 3}, {{"keyD", 0}, 4},          {{"keyC", 0}, 5},
                  {{"keyE", 0}, 6}};
  for (int rank = 0; rank < kWorld; ++rank) expected[{"keyB", 20 * rank}] = rank;

  for (const auto purpose : {DistributionPurpose::save, DistributionPurpose::load}) {
    EXPECT_EQ(owners_of(distributed(purpose, world())), expected);
  }
}

TEST(Distribution, OverADataGroupSavesWhatTheGroupHasTheMainReplicaOf) {
  auto first = owners_of(distributed(DistributionPurpose::save, data_group(0)));
  auto second = owners_of(distributed(DistributionPurpose::save, data_group(1)));

  std::erase_if(first, [](const auto& entry) { return entry.first.first == "keyB"; });
  std::erase_if(second, [](const auto& entry) { return entry.first.first == "keyB"; });
  EXPECT_EQ(first, (Owners{{{"keyD", 0}, 0},
                           {{"keyC", 0}, 1},
                           {{"keyE", 0}, 2},
                           {{"key_TP_repl1", 0}, 3},
                           {{"key_TP_repl2", 0}, 3}}));
  EXPECT_EQ(second, (Owners{{{"key_TP_repl1", 10}, 0}, {{"key_TP_repl2", 10}, 1}}));
}

TEST(Distribution, OverADataGroupLoadsShardsOfOtherGroupsLast) {
  const auto first = distributed(DistributionPurpose::load, data_group(0));
  const auto second = distributed(DistributionPurpose::load, data_group(1));

  EXPECT_EQ(first.assignments, distributed(DistributionPurpose::save, data_group(0)).assignments);
  auto owners = owners_of(second);
  std::erase_if(owners, [](const auto& entry) { return entry.first.first == "keyB"; });
  EXPECT_EQ(owners, (Owners{{{"key_TP_repl1", 10}, 0},
                            {{"key_TP_repl2", 10}, 1},
                            {{"keyD", 0}, 2},
                            {{"keyC", 0}, 3},
                            {{"keyE", 0}, 0}}));
  EXPECT_EQ(cross_group_keys(second), (std::vector<std::string>{"keyD", "keyC", "keyE"}));
}

TEST(Distribution, AShardThatAllHoldGoesToARankWithoutOne) {
  Members members(kWorld);
  members[0].push_back(part("a", 10, 0, 1, 0));
  members[1].push_back(part("b", 10, 0, 1, 0));
  for (int rank = 0; rank < kWorld; ++rank)
    members[static_cast<std::size_t>(rank)].push_back(part("c", 10, 0, 1, rank));

  const auto owners = owners_of(distributed(DistributionPurpose::save, members));

  EXPECT_EQ(owners, (Owners{{{"a", 0}, 0}, {{"b", 0}, 1}, {{"c", 0}, 2}}));
}

TEST(Distribution, InAGroupOfOneAllButTheMainReplicaAreReadAcross) {
  for (int rank = 0; rank < kWorld; ++rank) {
    const Members members{{part("c", 10, 0, 1, rank)}};

    const auto save = distributed(DistributionPurpose::save, members);
    const auto load = distributed(DistributionPurpose::load, members);

    EXPECT_EQ(save.assignments.size(), rank == 0 ? 1U : 0U);
    ASSERT_EQ(load.assignments.size(), 1U);
    EXPECT_EQ(load.assignments[0].cross_group, rank != 0);
  }
}

TEST(Distribution, ApplyingItMakesTheOwnerTheMainReplica) {
  const auto distribution = distributed(DistributionPurpose::save, data_group(1));
  auto shards = example(5);

  ASSERT_TRUE(distribution.apply(DistributionPurpose::save, 2, shards));

  std::vector<int> replicas;
  for (const auto& shard : shards) replicas.push_back(shard.replica_id.at(0));
  // Member 2 writes its own part of keyB only.
  EXPECT_EQ(replicas, (std::vector<int>{1, 1, 0, 1, 1, 1}));
}

TEST(Distribution, ForLoadingIsRefusedForSaving) {
  const auto distribution = distributed(DistributionPurpose::load, world());
  auto shards = example(0);

  const auto result = distribution.apply(DistributionPurpose::save, 0, shards);

  EXPECT_EQ(result.error().code, Errc::invalid_argument);
  EXPECT_THAT(result.error().message, HasSubstr("for a load can not be used for a save"));
  EXPECT_EQ(shards, example(0));
}

TEST(Distribution, MembersThatContradictEachOtherAreNamed) {
  Members dtypes = world();
  dtypes[3][4].dtype = DType::bf16;
  Members broken = world();
  broken[0][0].global_offset.clear();

  EXPECT_THAT(distribute(DistributionPurpose::save, dtypes).error().message,
              HasSubstr("differently: 'keyD', f32"));
  EXPECT_THAT(distribute(DistributionPurpose::save, broken).error().message,
              HasSubstr("same number of axes"));
}

TEST(Distribution, TheFingerprintTellsLayoutsApart) {
  const auto fingerprint = [](auto alter) {
    Members members = world();
    alter(members);
    return distributed(DistributionPurpose::save, members).fingerprint;
  };
  const auto unchanged = fingerprint([](auto&) {});

  EXPECT_EQ(fingerprint([](auto&) {}), unchanged);
  EXPECT_EQ(distributed(DistributionPurpose::load, world()).fingerprint, unchanged);
  EXPECT_NE(fingerprint([](auto& m) { m.pop_back(); }), unchanged);
  EXPECT_NE(fingerprint([](auto& m) { m.emplace_back(); }), unchanged);
  EXPECT_NE(fingerprint([](auto& m) { std::swap(m[0], m[1]); }), unchanged);
  EXPECT_NE(fingerprint([](auto& m) { m[7].pop_back(); }), unchanged);
  EXPECT_NE(fingerprint([](auto& m) { m[7][2].key = "keyF"; }), unchanged);
  EXPECT_NE(fingerprint([](auto& m) { m[7][3].replica_id = {0}; }), unchanged);
  EXPECT_NE(fingerprint([](auto& m) {
              for (auto& member : m) member[3].dtype = DType::i32;
            }),
            unchanged);
  EXPECT_NE(fingerprint([](auto& m) {
              for (auto& member : m) member[3].local_shape = member[3].global_shape = Shape{99};
            }),
            unchanged);
}

TEST(Distribution, OfAnotherLayoutIsRefused) {
  const auto distribution = distributed(DistributionPurpose::save, world());

  EXPECT_TRUE(distribution.check_fingerprint(distribution.fingerprint));
  const auto result = distribution.check_fingerprint(distribution.fingerprint + 1);
  EXPECT_EQ(result.error().code, Errc::mismatch);
}

RC_GTEST_PROP(Distribution, GivesEveryShardOneOwnerThatHoldsIt, ()) {
  const int ranks = *rc::gen::inRange(1, 7);
  Members members(static_cast<std::size_t>(ranks));
  std::map<std::string, std::vector<int>> holders;
  for (int shard = *rc::gen::inRange(1, 12); shard > 0; --shard) {
    const std::string key = "s" + std::to_string(shard);
    const auto elements = *rc::gen::inRange<std::int64_t>(0, 50);
    for (int rank = 0; rank < ranks; ++rank) {
      if (*rc::gen::arbitrary<bool>()) continue;
      members[static_cast<std::size_t>(rank)].push_back(
          part(key, elements, 0, 1, static_cast<int>(holders[key].size())));
      holders[key].push_back(rank);
    }
  }

  const auto distribution = distributed(DistributionPurpose::save, members);

  std::map<std::string, int> owned;
  for (int rank = 0; rank < ranks; ++rank) {
    auto& shards = members[static_cast<std::size_t>(rank)];
    RC_ASSERT(distribution.apply(DistributionPurpose::save, rank, shards).has_value());
    for (const auto& shard : shards) owned[shard.key] += shard.is_main_replica() ? 1 : 0;
  }
  RC_ASSERT(owned.size() == holders.size());
  for (const auto& [key, count] : owned) RC_ASSERT(count == 1);
}

// A thousand ranks that hold the same two thousand shards: four bytes a holder, no hash, no copy.
TEST(Distribution, AThousandRanksShareTwoThousandShards) {
  std::vector<ShardedTensor> shards;
  for (int i = 0; i < 2000; ++i)
    shards.push_back(part("decoder.layers.mlp.weight." + std::to_string(i), 1024, 0, 1, 0));
  Distributor distributor;

  for (int rank = 0; rank < 1024; ++rank) ASSERT_TRUE(distributor.add_member(shards));
  const auto distribution = distributor.decide(DistributionPurpose::save);

  std::vector<int> counts(1024);
  for (const auto& assignment : distribution.assignments)
    ++counts[static_cast<std::size_t>(assignment.owner)];
  EXPECT_EQ(distribution.assignments.size(), 2000U);
  EXPECT_EQ(*std::max_element(counts.begin(), counts.end()), 2);
  EXPECT_EQ(*std::min_element(counts.begin(), counts.end()), 1);
}

}  // namespace
}  // namespace troupe::core
