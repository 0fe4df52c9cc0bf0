#include "core/layout/buffers.hpp"

#include <gtest/gtest.h>

#include "tests/core/layout/parameters.hpp"

namespace troupe::core {
namespace {

using Indices = std::vector<std::size_t>;
using BucketGroups = std::vector<std::vector<BucketRef>>;

TEST(BufferKeys, OneBufferForEqualParameters) {
  const std::vector<ParameterTraits> parameters(2, {.dtype = DType::bf16});

  const auto fp32 = group_into_buffers(parameters, true);
  const auto narrow = group_into_buffers(parameters, false);

  ASSERT_EQ(fp32.size(), 1U);
  EXPECT_EQ(fp32[0].key, (BufferKey{.storage = DType::bf16, .gradient = DType::f32}));
  EXPECT_EQ(fp32[0].parameters, (Indices{0, 1}));
  EXPECT_EQ(fp32[0].counts, (Indices{0, 1}));
  EXPECT_EQ(narrow[0].key.gradient, DType::bf16);
}

TEST(BufferKeys, DtypesExpertsAndWholeParametersAreApart) {
  const std::vector<ParameterTraits> parameters{{.dtype = DType::bf16},
                                                {.dtype = DType::bf16, .expert = true},
                                                {.dtype = DType::f32},
                                                {.dtype = DType::bf16, .whole_parameter = true},
                                                {.dtype = DType::bf16}};

  const auto buffers = group_into_buffers(parameters, true);

  ASSERT_EQ(buffers.size(), 4U);
  EXPECT_EQ(buffers[0].parameters, (Indices{0, 4}));
  EXPECT_EQ(buffers[0].counts, (Indices{0, 1}));
  EXPECT_EQ(buffers[1].parameters, (Indices{1}));
  EXPECT_EQ(buffers[1].counts, (Indices{0}));
  EXPECT_TRUE(buffers[1].key.expert);
  EXPECT_EQ(buffers[2].key.storage, DType::f32);
  EXPECT_TRUE(buffers[3].key.whole_parameter);
}

TEST(BufferKeys, QuantisedParametersCountWithTheirLogicalDtype) {
  const std::vector<ParameterTraits> parameters{{.dtype = DType::bf16, .quantised = true},
                                                {.dtype = DType::bf16},
                                                {.dtype = DType::bf16, .quantised = true}};

  const auto buffers = group_into_buffers(parameters, false);

  ASSERT_EQ(buffers.size(), 2U);
  EXPECT_EQ(buffers[0].key, (BufferKey{.storage = DType::u8, .gradient = DType::bf16}));
  EXPECT_EQ(buffers[0].counts, (Indices{0, 2}));
  EXPECT_EQ(buffers[1].counts, (Indices{1}));
}

TEST(BufferKeys, ExpertsHaveOwnGroupsOnlyWhereTheTopologyDiffers) {
  EXPECT_FALSE(expert_has_own_groups(1, 2, 2));
  EXPECT_TRUE(expert_has_own_groups(2, 2, 2));
  EXPECT_TRUE(expert_has_own_groups(1, 1, 2));
}

TEST(BufferKeys, WholeParameterOptimizersTakeMatricesThatAreNotExcluded) {
  EXPECT_TRUE(is_whole_parameter({}));
  EXPECT_FALSE(is_whole_parameter({.excluded = true}));
  EXPECT_FALSE(is_whole_parameter({.embedding_or_output = true}));
  EXPECT_FALSE(is_whole_parameter({.dimensions = 1}));
  EXPECT_FALSE(is_whole_parameter({.dimensions = 1, .excluded = true}));
  EXPECT_FALSE(is_whole_parameter({.dimensions = 3}));
}

TEST(BucketGroupsOf, NoBuffersAreNoGroups) {
  EXPECT_TRUE(bucket_groups({}).value().empty());
}

TEST(BucketGroupsOf, EveryBucketIsAGroup) {
  const std::vector<BufferBuckets> buffers{{.buckets = 2}, {.buckets = 1}};

  EXPECT_EQ(bucket_groups(buffers).value(), (BucketGroups{{{0, 0}}, {{0, 1}}, {{1, 0}}}));
}

TEST(BucketGroupsOf, ASingleGroupTakesAll) {
  const std::vector<BufferBuckets> buffers{{.buckets = 1}, {.buckets = 2, .quantised = true}};

  EXPECT_EQ(bucket_groups(buffers, {.single_group = true}).value(), (BucketGroups{{{0, 0}, {1, 0}, {1, 1}}}));
}

TEST(BucketGroupsOf, SmallBucketsJoinTheLastQuantisedOne) {
  const std::vector<BufferBuckets> buffers{{.buckets = 2}, {.buckets = 2, .quantised = true}};

  EXPECT_EQ(bucket_groups(buffers).value(), (BucketGroups{{{1, 0}}, {{1, 1}, {0, 0}, {0, 1}}}));
  EXPECT_EQ(bucket_groups(buffers, {.one_bucket_each = true}).value(),
            (BucketGroups{{{1, 0}}, {{1, 1}}, {{0, 0}}, {{0, 1}}}));
}

TEST(BucketGroupsOf, TwoQuantisedBuffersAreAnError) {
  const std::vector<BufferBuckets> buffers{{.buckets = 1, .quantised = true},
                                           {.buckets = 1, .quantised = true}};

  EXPECT_FALSE(bucket_groups(buffers));
}

TEST(ReadyOrder, IsThatOfTheBackwardPassOverAllBuffers) {
  // Parameters 0 2 4 6 lie in the first buffer, 1 3 5 in the second, two in a bucket.
  const std::vector<std::vector<std::size_t>> members{{0, 2, 4, 6}, {1, 3, 5}};
  const LayoutOptions two{.bucket_size = 200};
  const std::vector<BufferLayout> layouts{plain_layout(sizes({100, 100, 100, 100}), two).value(),
                                          plain_layout(sizes({100, 100, 100}), two).value()};

  // First parameters of the buckets: 4 and 0, 3 and 1.
  EXPECT_EQ(ready_order(layouts, members), (std::vector<BucketRef>{{0, 0}, {1, 0}, {1, 1}, {0, 1}}));
}

}  // namespace
}  // namespace troupe::core
