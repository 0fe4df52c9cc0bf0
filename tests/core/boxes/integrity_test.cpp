#include "core/boxes/integrity.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace troupe::core {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr std::int64_t kRanks = 8;

ShardedTensor regular(Shape shape, std::vector<RankOffset> offsets, ReplicaId replica = {0}) {
  return ShardedTensor::from_rank_offsets("w", DType::f32, std::move(shape), offsets,
                                          {.replica_id = std::move(replica)})
      .value();
}

ShardedTensor irregular(std::int64_t offset, std::int64_t length, std::int64_t total) {
  return {.key = "w", .local_shape = {length}, .global_shape = {total}, .global_offset = {offset}};
}

std::vector<RankShards> per_rank(const std::function<RankShards(std::int64_t)>& make) {
  std::vector<RankShards> ranks;
  for (std::int64_t rank = 0; rank < kRanks; ++rank) ranks.push_back(make(rank));
  return ranks;
}

/// A (2, 4) grid with the column replicated: ranks 0-3 hold row 0, ranks 4-7 row 1.
std::vector<RankShards> grid() {
  return per_rank([](std::int64_t rank) {
    return RankShards{.tensors = {regular({3, 5}, {{0, rank / 4, 2}, {1, rank % 4, 4}})}, .objects = {}};
  });
}

std::string verdict(const std::vector<RankShards>& ranks) {
  const auto result = check_integrity(ranks);
  return result ? "whole" : result.error().message;
}

TEST(Integrity, EveryCellWithOneMainReplicaIsWhole) {
  EXPECT_EQ(verdict(grid()), "whole");
  EXPECT_EQ(verdict({}), "whole");
}

TEST(Integrity, CopiesOfCellsDoNotCount) {
  const auto ranks = per_rank([](std::int64_t rank) {
    return RankShards{.tensors = {regular({3}, {{0, rank % 2, 2}}, {0, static_cast<int>(rank / 2)})},
                      .objects = {}};
  });

  EXPECT_EQ(verdict(ranks), "whole");
}

TEST(Integrity, CellWithTwoMainReplicasIsAnInvalidAccess) {
  auto ranks = grid();

  ranks[3].tensors[0] = ranks[2].tensors[0];

  EXPECT_THAT(verdict(ranks), AllOf(HasSubstr("Invalid access pattern for 'w'"), HasSubstr("(0, 2): 2"),
                                    HasSubstr("1 of 8 cells have no main replica")));
}

TEST(Integrity, ACellWithoutMainReplicaIsAnInvalidAccess) {
  auto ranks = grid();

  ranks[5].tensors[0].replica_id = {0, 1};

  EXPECT_THAT(verdict(ranks), AllOf(HasSubstr("Invalid access pattern"), HasSubstr("{(1, 1): 0}")));
}

TEST(Integrity, ACellThatNobodyHoldsIsAnInvalidAccess) {
  auto ranks = grid();

  ranks[5].tensors.clear();

  EXPECT_THAT(verdict(ranks), AllOf(HasSubstr("Invalid access pattern"), HasSubstr("1 of 8 cells")));
}

TEST(Integrity, RanksThatDescribeATensorDifferentlyAreNamed) {
  const auto altered = [](auto alter) {
    auto ranks = grid();
    alter(ranks[6].tensors[0]);
    return verdict(ranks);
  };

  EXPECT_THAT(altered([](auto& t) { t.dtype = DType::bf16; }),
              HasSubstr("different dtypes on ranks 0 and 6"));
  EXPECT_THAT(altered([](auto& t) {
                t = regular({3, 6}, {{0, 1, 2}, {1, 2, 4}});
              }),
              HasSubstr("different global shapes"));
  EXPECT_THAT(altered([](auto& t) { t.axis_fragmentations.reset(); }), HasSubstr("one is regular"));
  EXPECT_THAT(altered([](auto& t) {
                t = regular({1, 5}, {{0, 1, 6}, {1, 2, 4}});
              }),
              HasSubstr("different local shapes"));
  EXPECT_THAT(altered([](auto& t) { t.global_offset[1] = 9; }), HasSubstr("rank 6: 'w'"));
}

// Covers uneven-7.
TEST(Integrity, IrregularPartsMustCoverTheTensorOnce) {
  const std::vector<std::int64_t> lengths{5, 5, 5, 5, 5, 5, 0, 0};
  const auto ranks = [&](std::int64_t shift) {
    return per_rank([&](std::int64_t rank) {
      const std::int64_t length = lengths[static_cast<std::size_t>(rank)];
      const std::int64_t offset = length == 0 ? 30 : rank * 5 - (rank == 3 ? shift : 0);
      return RankShards{.tensors = {irregular(offset, length, 30)}, .objects = {}};
    });
  };

  EXPECT_EQ(verdict(ranks(0)), "whole");
  EXPECT_THAT(verdict(ranks(1)), AllOf(HasSubstr("'w': Invalid access pattern"), HasSubstr("overlap")));
  auto hole = ranks(0);
  hole[3].tensors[0].replica_id = {1};
  EXPECT_THAT(verdict(hole), AllOf(HasSubstr("Invalid access pattern"), HasSubstr("25 of 30 elements")));
}

TEST(Integrity, AnEmptyTensorIsWhole) {
  const auto ranks = per_rank([](std::int64_t rank) {
    return RankShards{.tensors = {regular({0, 5}, {{0, rank, kRanks}})}, .objects = {}};
  });

  EXPECT_EQ(verdict(ranks), "whole");
}

// Covers save-6.
TEST(Integrity, SeveralPartsOfOneRankMakeUpATensor) {
  const auto ranks = per_rank([](std::int64_t rank) {
    return RankShards{
        .tensors = {regular({3}, {{0, rank, 2 * kRanks}}), regular({3}, {{0, rank + kRanks, 2 * kRanks}})},
        .objects = {}};
  });

  EXPECT_EQ(verdict(ranks), "whole");
}

std::vector<RankShards> objects() {
  return per_rank([](std::int64_t rank) {
    return RankShards{.tensors = {},
                      .objects = {{.key = "rng", .global_shape = {1, kRanks}, .global_offset = {0, rank}},
                                  {.key = "common", .replica_id = {static_cast<int>(rank)}}}};
  });
}

TEST(Integrity, ObjectsAreCompleteAndUnique) {
  EXPECT_EQ(verdict(objects()), "whole");

  auto twice = objects();
  twice[3].objects[0].global_offset = {0, 2};
  EXPECT_THAT(verdict(twice), AllOf(HasSubstr("Duplicate ShardedObject keys"), HasSubstr("ranks 2, 3")));

  auto missing = objects();
  missing[3].objects[0].replica_id = {1};
  EXPECT_THAT(verdict(missing),
              AllOf(HasSubstr("1 of 8 cells of the ShardedObject are missing"), HasSubstr("'rng'")));

  auto grids = objects();
  grids[3].objects[0].global_shape = {1, 9};
  EXPECT_THAT(verdict(grids), HasSubstr("(1, 8) on rank 0 and (1, 9) on rank 3"));
}

TEST(Integrity, AKeyIsATensorOrAnObject) {
  auto ranks = objects();

  ranks[2].tensors.push_back({.key = "rng", .local_shape = {1}, .global_shape = {1}, .global_offset = {0}});

  EXPECT_THAT(verdict(ranks), HasSubstr("'rng' is a tensor on rank 2 and an object on rank 0"));
}

}  // namespace
}  // namespace troupe::core
