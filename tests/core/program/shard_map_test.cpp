#include "core/program/shard_map.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "core/program/tensor_class.hpp"

namespace troupe::core {
namespace {

constexpr auto F = Placement::flat_shard;
constexpr auto R = Placement::replicated;

/// Buckets as a job of 12 ranks may have them.
const std::vector<ElementRange> kBuckets{{0, 1200}, {1200, 1800}};

ShardMap map_of(Strategy strategy, int instances, std::vector<int> sizes, std::vector<int> coordinates) {
  return ShardMap::create(kBuckets, placements_of(strategy, instances).value(), std::move(sizes),
                          std::move(coordinates))
      .value();
}

/// Part `index` of `parts` of a bucket, written out.
ElementRange slice(ElementRange bucket, std::int64_t parts, std::int64_t index) {
  const std::int64_t length = (bucket.end - bucket.start) / parts;
  return {bucket.start + index * length, bucket.start + (index + 1) * length};
}

TEST(ShardMap, OfReplicasHoldsEverythingAndReducesAPartOfItsOwn) {
  for (int rank = 0; rank < 12; ++rank) {
    const auto map = map_of(Strategy::ddp, 1, {12}, {rank});

    for (std::size_t b = 0; b < 2; ++b) {
      EXPECT_EQ(map.range(TensorRole::parameter, b), kBuckets[b]);
      EXPECT_EQ(map.range(TensorRole::gradient, b), kBuckets[b]);
      EXPECT_EQ(map.range(TensorRole::optimizer, b), kBuckets[b]);
      EXPECT_EQ(map.part({F}, b), slice(kBuckets[b], 12, rank));
    }
  }
}

TEST(ShardMap, OfAShardedOptimizerHoldsOneShardOfEachBucket) {
  for (int rank = 0; rank < 12; ++rank) {
    const auto map = map_of(Strategy::zero1, 1, {12}, {rank});

    for (std::size_t b = 0; b < 2; ++b) {
      EXPECT_EQ(map.range(TensorRole::parameter, b), kBuckets[b]);
      EXPECT_EQ(map.range(TensorRole::optimizer, b), slice(kBuckets[b], 12, rank));
    }
  }
}

/// Copies of the optimizer are neighbours: of 12 ranks with 3 copies, ranks 4 to 7 share the second one.
TEST(ShardMap, OfSeveralInstancesHoldsTheShardOfTheRankWithinItsInstance) {
  const Mesh mesh = Mesh::create({.dp = 12, .optimizer_instances = 3}).value();
  const Domain domain = domain_of(mesh, ScaleRule::dense, 2).value();
  for (int rank = 0; rank < 12; ++rank) {
    const auto map = map_of(Strategy::zero1, 3, domain.sizes, coordinates_in(domain, mesh, {rank}));

    for (std::size_t b = 0; b < 2; ++b) {
      EXPECT_EQ(map.range(TensorRole::optimizer, b), slice(kBuckets[b], 4, rank % 4));
      EXPECT_EQ(map.range(TensorRole::parameter, b), kBuckets[b]);
    }
    EXPECT_EQ(map.answers(TensorRole::optimizer), rank < 4) << "the norm counts every part once";
  }
}

/// [F,F]: offset = inner_rank * size / inner + outer_rank * size / (inner * outer).
TEST(ShardMap, OfFullHybridShardingCutsTheInnerAxisFirst) {
  for (int outer = 0; outer < 2; ++outer) {
    for (int inner = 0; inner < 3; ++inner) {
      const auto map = map_of(Strategy::hfsdp, 1, {2, 3}, {outer, inner});

      const std::int64_t offset = inner * 1200 / 3 + outer * 1200 / 6;
      EXPECT_EQ(map.range(TensorRole::optimizer, 0), (ElementRange{offset, offset + 200}));
      EXPECT_EQ(map.range(TensorRole::parameter, 0), (ElementRange{inner * 400, inner * 400 + 400}));
      EXPECT_EQ(map.range(TensorRole::gradient, 0), (ElementRange{inner * 400, inner * 400 + 400}));
    }
  }
}

TEST(ShardMap, PartsThatDoNotDivideDifferByOneElement) {
  const auto map = ShardMap::create({{10, 20}}, placements_of(Strategy::ddp).value(), {3}, {0}).value();

  EXPECT_EQ(map.part({F}, 0, {0}), (ElementRange{10, 14}));
  EXPECT_EQ(map.part({F}, 0, {1}), (ElementRange{14, 17}));
  EXPECT_EQ(map.part({F}, 0, {2}), (ElementRange{17, 20}));
  EXPECT_EQ(map.part({R}, 0, {2}), (ElementRange{10, 20}));
}

TEST(ShardMap, RefusesAFlatTensorThatItsShardsCannotCut) {
  const auto map = ShardMap::create({{0, 10}}, placements_of(Strategy::zero3).value(), {3}, {0});

  EXPECT_EQ(map.error().message, "10 elements do not divide by the 3 ranks of axis 0");
}

RC_GTEST_PROP(ShardMap, EveryElementHasOneOwnerInEachCopyOfTheOptimizer, ()) {
  const int outer = *rc::gen::inRange(1, 5);
  const int inner = *rc::gen::inRange(1, 5);
  const auto strategy = *rc::gen::element(Strategy::hsdp, Strategy::hfsdp);
  const std::int64_t size = outer * inner * *rc::gen::inRange(0, 20);
  std::vector<int> owners(static_cast<std::size_t>(size));

  for (int place = 0; place < outer * inner; ++place) {
    const auto map = ShardMap::create({{0, size}}, placements_of(strategy).value(), {outer, inner},
                                      {place / inner, place % inner})
                         .value();
    const auto range = map.range(TensorRole::optimizer, 0);
    for (auto e = range.start; e < range.end; ++e) ++owners[static_cast<std::size_t>(e)];
  }

  const int copies = strategy == Strategy::hsdp ? outer : 1;
  for (const int count : owners) RC_ASSERT(count == copies);
}

}  // namespace
}  // namespace troupe::core
