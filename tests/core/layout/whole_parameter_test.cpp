#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/layout/buffer_layout.hpp"
#include "tests/core/layout/parameters.hpp"

namespace troupe::core {
namespace {

using Buckets = std::vector<BucketPlace>;

BufferLayout layout_of(const std::vector<LayoutParameter>& parameters, const LayoutOptions& options) {
  return whole_parameter_layout(parameters, options).value();
}

/// The shard that holds a parameter; fails where it holds a part only.
int shard_of(const BufferLayout& layout, std::size_t parameter) {
  const ParameterPlace& place = layout.parameters.at(parameter);
  for (int shard = 0; shard < layout.shards; ++shard) {
    const ElementRange range = shard_range(layout, place.bucket, shard);
    if (range.start <= place.start && place.end <= range.end) return shard;
  }
  ADD_FAILURE() << "parameter " << parameter << " crosses a shard border";
  return -1;
}

// Covers whole-3.
TEST(WholeParameterLayout, ShardSizesDivideByTheDivisor) {
  EXPECT_EQ(whole_parameter_shard_divisor(1, false), 128);
  for (const int shards : {2, 4, 8, 16}) EXPECT_EQ(whole_parameter_shard_divisor(shards, false), 64);
  EXPECT_EQ(whole_parameter_shard_divisor(3, false), 128);
  EXPECT_EQ(whole_parameter_shard_divisor(256, false), 64);
  EXPECT_EQ(whole_parameter_shard_divisor(1, true), 65536);
  EXPECT_EQ(whole_parameter_shard_divisor(2, true), 32768);
  EXPECT_EQ(whole_parameter_shard_divisor(4, true), 16384);
  EXPECT_EQ(whole_parameter_shard_divisor(8, true), 8192);
  EXPECT_EQ(whole_parameter_shard_divisor(16, true), 4096);
  EXPECT_EQ(whole_parameter_shard_divisor(3, true), 65536);
  EXPECT_EQ(whole_parameter_shard_divisor(256, true), 256);
}

// Covers whole-4.
TEST(WholeParameterLayout, EqualParametersFillTheShardsEvenly) {
  const auto layout = layout_of(sizes(std::vector<std::int64_t>(8, 256)), {.shards = 4});

  EXPECT_EQ(layout.buckets, (Buckets{{0, 2048, 2048}}));
  std::vector<int> counts(4);
  for (std::size_t i = 0; i < 8; ++i) ++counts[static_cast<std::size_t>(shard_of(layout, i))];
  EXPECT_EQ(counts, (std::vector<int>{2, 2, 2, 2}));
}

// Covers whole-5.
TEST(WholeParameterLayout, ARemainderBecomesPadding) {
  const auto layout = layout_of(sizes(std::vector<std::int64_t>(5, 256)), {.shards = 4});

  EXPECT_EQ(layout.buckets, (Buckets{{0, 2048, 1280}}));
  std::vector<int> counts(4);
  for (std::size_t i = 0; i < 5; ++i) ++counts[static_cast<std::size_t>(shard_of(layout, i))];
  EXPECT_EQ(counts, (std::vector<int>{2, 1, 1, 1}));
}

// Covers whole-12, whole-13.
TEST(WholeParameterLayout, BucketAbsorbsAParameterThatFitsItsPadding) {
  const LayoutOptions options{.bucket_size = 1280, .shards = 4};

  EXPECT_EQ(layout_of(sizes(std::vector<std::int64_t>(6, 256)), options).buckets, (Buckets{{0, 2048, 1536}}));
  EXPECT_EQ(layout_of(sizes(std::vector<std::int64_t>(8, 256)), options).buckets, (Buckets{{0, 2048, 2048}}));
}

// Covers whole-14.
TEST(WholeParameterLayout, MixedSizesMayAbsorbIntoALargerBucket) {
  // Registered in the reverse of the order in which the walk meets them.
  const auto layout = layout_of(sizes({192, 128, 128, 256, 192, 192}), {.bucket_size = 448, .shards = 2});

  EXPECT_EQ(layout.buckets, (Buckets{{0, 1024, 896}, {1024, 1408, 192}}));
}

// Covers whole-8.
TEST(WholeParameterLayout, ALargeParameterKeepsAShardForItself) {
  const auto layout = layout_of(sizes({128, 128, 128, 1024}), {.shards = 4});

  EXPECT_EQ(layout.buckets, (Buckets{{0, 4096, 1408}}));
  const std::set<int> used{shard_of(layout, 0), shard_of(layout, 1), shard_of(layout, 2),
                           shard_of(layout, 3)};
  EXPECT_EQ(used.size(), 4U);
}

// Covers whole-9.
TEST(WholeParameterLayout, ASharedEmbeddingIsAloneInShardZero) {
  const auto layout = layout_of(with_shared(sizes({128, 128, 128, 128, 128}), 0), {.shards = 2});

  EXPECT_EQ(layout.buckets, (Buckets{{0, 512, 512}, {512, 768, 128}}));
  EXPECT_EQ(layout.parameters[0], (ParameterPlace{512, 640, 1}));
}

// Covers whole-10.
TEST(WholeParameterLayout, SharedEmbeddingFitsIntoOneOfManyShards) {
  for (const int shards : {2, 4, 8}) {
    const auto layout = layout_of(with_shared(sizes({1024}), 0), {.shards = shards});

    EXPECT_EQ(layout.buckets, (Buckets{{0, 1024 * shards, 1024}}));
    EXPECT_EQ(shard_of(layout, 0), 0);
  }
}

// Covers whole-11.
TEST(WholeParameterLayout, TheBucketSizeMakesSeveralBuckets) {
  const auto layout = layout_of(sizes(std::vector<std::int64_t>(8, 256)), {.bucket_size = 512, .shards = 2});

  EXPECT_EQ(layout.buckets, (Buckets{{0, 512, 512}, {512, 1024, 512}, {1024, 1536, 512}, {1536, 2048, 512}}));
}

// Covers whole-6, whole-7, whole-18, whole-23.
TEST(WholeParameterLayout, NoParameterCrossesAShardBorder) {
  const std::vector<std::pair<std::vector<std::int64_t>, int>> cases{
      {{100, 200, 100, 200, 100}, 2},
      {{256, 64, 256, 64, 256, 64, 256, 64}, 4},
      {{64, 64, 1024}, 2},
      {{7, 1000, 33, 512, 1, 64, 129}, 4},
      {{100, 100, 100, 100, 100}, 1},
      {{512}, 4},
  };

  for (const auto& [elements, shards] : cases) {
    const auto layout = layout_of(sizes(elements), {.shards = shards});
    ASSERT_EQ(layout.parameters.size(), elements.size());
    for (std::size_t i = 0; i < elements.size(); ++i) {
      EXPECT_GE(shard_of(layout, i), 0);
      EXPECT_EQ(layout.parameters[i].end - layout.parameters[i].start, elements[i]);
      EXPECT_EQ(layout.parameters[i].bucket, 0);
    }
  }
}

// Covers whole-15, whole-16.
TEST(WholeParameterLayout, BucketEndsAreAlignedOverTheWholeBuffer) {
  for (const int shards : {2, 4, 8}) {
    const auto elements = std::vector<std::int64_t>(static_cast<std::size_t>(2 * shards), 333);
    const auto layout = layout_of(sizes(elements), {.bucket_size = 999, .shards = shards});

    for (const BucketPlace& bucket : layout.buckets) {
      EXPECT_EQ(bucket.end % 128, 0);
      EXPECT_EQ(bucket.size() % shards, 0);
    }
  }
}

// Covers whole-17.
TEST(WholeParameterLayout, InsideAShardParametersLieInBackwardOrder) {
  const auto layout = layout_of(sizes(std::vector<std::int64_t>(6, 128)), {.shards = 2});

  for (std::size_t i = 0; i + 1 < 6; ++i) {
    for (std::size_t j = i + 1; j < 6; ++j) {
      if (shard_of(layout, i) == shard_of(layout, j)) {
        EXPECT_GT(layout.parameters[i].start, layout.parameters[j].start);
      }
    }
  }
}

double imbalance(const std::vector<double>& costs) {
  double total = 0;
  for (const double cost : costs) total += cost;
  return *std::max_element(costs.begin(), costs.end()) / (total / static_cast<double>(costs.size()));
}

// Covers whole-21.
TEST(WholeParameterLayout, MatricesAreBalancedByComputeNotBySize) {
  const std::vector<LayoutParameter> parameters{matrix(64, 256, 64), matrix(64, 256, 64), matrix(64, 256, 64),
                                                matrix(128, 1024),   matrix(256, 256),    matrix(256, 256),
                                                matrix(64, 256)};
  // Rows times the ranks that share them, then longer side times shorter side squared.
  const std::vector<double> cost{4096.0 * 256 * 256, 4096.0 * 256 * 256, 4096.0 * 256 * 256,
                                 1024.0 * 128 * 128, 256.0 * 256 * 256,  256.0 * 256 * 256,
                                 256.0 * 64 * 64};

  const auto layout = layout_of(parameters, {.shards = 4});

  const std::set<int> sharded{shard_of(layout, 0), shard_of(layout, 1), shard_of(layout, 2)};
  EXPECT_EQ(sharded.size(), 3U);
  std::vector<double> costs(4);
  for (std::size_t i = 0; i < parameters.size(); ++i)
    costs[static_cast<std::size_t>(shard_of(layout, i))] += cost[i];
  EXPECT_LT(imbalance(costs), 1.5);
}

// Covers whole-22.
TEST(WholeParameterLayout, CostlyMatricesOfSeveralBucketsLandOnDifferentShards) {
  std::vector<LayoutParameter> parameters;
  for (int bucket = 0; bucket < 4; ++bucket) {
    parameters.push_back(matrix(64, 256, 64));
    for (int i = 0; i < 3; ++i) parameters.push_back(matrix(128, 128));
  }

  const auto layout = layout_of(parameters, {.bucket_size = 65536, .shards = 4});

  ASSERT_EQ(layout.buckets.size(), 4U);
  for (const BucketPlace& bucket : layout.buckets) EXPECT_EQ(bucket.size(), 65536);
  // The walk is backwards, so the last registered one is met first.
  EXPECT_EQ(shard_of(layout, 12), 0);
  EXPECT_EQ(shard_of(layout, 8), 1);
  EXPECT_EQ(shard_of(layout, 4), 2);
  EXPECT_EQ(shard_of(layout, 0), 3);
}

TEST(WholeParameterLayout, ShapeThatContradictsTheSizeIsAnError) {
  const auto layout = whole_parameter_layout({{.elements = 10, .rows = 3, .columns = 4}}, {});

  ASSERT_FALSE(layout);
  EXPECT_NE(layout.error().message.find("10 elements, which are not 3 rows of 4"), std::string::npos);
}

TEST(WholeParameterLayout, PlacesHugeParametersOverManyShardsLikeSmallOnes) {
  // Elements times shards do not fit into 64 bits. The walk goes from the last parameter to the first.
  constexpr int kShards = 1 << 20;
  const auto parameters = with_shared(sizes({std::int64_t{1} << 42, 10, 64}), 1);

  const auto layout = layout_of(parameters, {.shards = kShards});

  ASSERT_EQ(layout.buckets.size(), 3U);
  EXPECT_EQ(shard_of(layout, 0), 0) << "no shard has it within 1.3 times the even share: the emptiest, not "
                                       "the one with the least cost so far";
}

TEST(WholeParameterLayout, RefusesMorePositionsThanANumberHas) {
  const auto layout = whole_parameter_layout(sizes({std::int64_t{1} << 50}), {.shards = 1 << 20});

  ASSERT_FALSE(layout);
  EXPECT_EQ(layout.error().code, Errc::invalid_argument);
  EXPECT_NE(layout.error().message.find("1048576 shards would have more than 2^63 elements"),
            std::string::npos);
}

}  // namespace
}  // namespace troupe::core
