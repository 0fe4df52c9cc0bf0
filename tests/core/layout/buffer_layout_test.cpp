#include "core/layout/buffer_layout.hpp"

#include <gtest/gtest.h>

#include "core/layout/arithmetic.hpp"
#include "tests/core/layout/parameters.hpp"

namespace troupe::core {
namespace {

using Buckets = std::vector<BucketPlace>;
using Parameters = std::vector<ParameterPlace>;

// Covers layout-1, layout-2.
TEST(LayoutArithmetic, RoundsUpToADivisor) {
  EXPECT_EQ(round_up(128, 64), 128);
  EXPECT_EQ(round_up(65, 64), 128);
  EXPECT_EQ(round_up(0, 64), 0);
  EXPECT_EQ(round_up(1, 64), 64);
  EXPECT_EQ(round_up(63, 64), 64);
  EXPECT_EQ(round_up(64, 64), 64);
}

// Covers layout-3, layout-4, layout-5.
TEST(LayoutArithmetic, BucketEndsDivideByShardsAndByAlignment) {
  for (int shards = 1; shards <= 128; shards *= 2) EXPECT_EQ(bucket_divisor(shards, false), 128);
  EXPECT_EQ(bucket_divisor(3, false), 384);
  EXPECT_EQ(bucket_divisor(6, false), 384);
  EXPECT_EQ(bucket_divisor(256, false), 256);
  for (int shards = 1; shards <= 65536; shards *= 2) EXPECT_EQ(bucket_divisor(shards, true), 65536);
  EXPECT_EQ(bucket_divisor(1, false, 256), 256);
  EXPECT_EQ(bucket_divisor(3, false, 256), 768);
  EXPECT_EQ(bucket_divisor(256, false, 256), 65536);
  EXPECT_EQ(bucket_divisor(3, true, 256), 196608);
  EXPECT_EQ(round_up(1, bucket_divisor(4, true)), 65536);
  EXPECT_EQ(round_up(128, bucket_divisor(2, false)), 128);
}

// Covers layout-11.
TEST(PlainLayout, OneBucketWithoutABucketSize) {
  const auto layout = plain_layout(sizes({10000, 2500}), {}).value();

  EXPECT_EQ(layout.parameters, (Parameters{{2500, 12500, 0}, {0, 2500, 0}}));
  EXPECT_EQ(layout.buckets, (Buckets{{0, 12500, 12500}}));
  EXPECT_EQ(layout.elements, 12500);
}

// Covers layout-12.
TEST(PlainLayout, BucketClosesWithTheParameterReachingItsSize) {
  const auto layout = plain_layout(sizes({10000, 10000, 10000}), {.bucket_size = 15000}).value();

  EXPECT_EQ(layout.buckets, (Buckets{{0, 20000, 20000}, {20000, 30000, 10000}}));
}

// Covers layout-13, layout-14.
TEST(PlainLayout, HasNoPadding) {
  const auto layout = plain_layout(sizes({97, 103}), {}).value();

  EXPECT_EQ(layout.buckets, (Buckets{{0, 200, 200}}));
  EXPECT_EQ(plain_layout(sizes({256}), {}).value().parameters, (Parameters{{0, 256, 0}}));
}

TEST(PlainLayout, OfNothingIsEmpty) {
  const auto layout = plain_layout({}, {}).value();

  EXPECT_EQ(layout, BufferLayout{});
}

// Covers layout-20, layout-21.
TEST(PaddedLayout, StartsParametersAt64AndEndsBucketsAtTheDivisor) {
  const auto layout = padded_layout(sizes({5000, 5000, 5000}), {.bucket_size = 8000, .shards = 2}).value();

  EXPECT_EQ(layout.parameters, (Parameters{{10112, 15112, 1}, {5056, 10056, 0}, {0, 5000, 0}}));
  EXPECT_EQ(layout.buckets, (Buckets{{0, 10112, 10056}, {10112, 15232, 5000}}));
  EXPECT_EQ(layout.elements, 15232);
}

// Covers layout-18, layout-22.
TEST(PaddedLayout, ASharedEmbeddingHasABucketOfItsOwn) {
  const auto parameters = with_shared(sizes({5000, 5000, 5000, 5000}), 3);

  const auto layout = padded_layout(parameters, {.bucket_size = 8000, .shards = 2}).value();

  EXPECT_EQ(layout.parameters,
            (Parameters{{15232, 20232, 2}, {10176, 15176, 1}, {5120, 10120, 1}, {0, 5000, 0}}));
  EXPECT_EQ(layout.buckets, (Buckets{{0, 5120, 5000}, {5120, 15232, 10056}, {15232, 20352, 5000}}));
}

// Covers layout-19.
TEST(PaddedLayout, LateSharedEmbeddingClosesTheBucketBeforeIt) {
  const LayoutOptions options{.shards = 2};

  const auto last = padded_layout(with_shared(sizes({1000, 1000}), 1), options).value();
  const auto first = padded_layout(with_shared(sizes({1000, 1000}), 0), options).value();

  EXPECT_EQ(last.buckets, (Buckets{{0, 1024, 1000}, {1024, 2048, 1000}}));
  EXPECT_EQ(first.buckets, (Buckets{{0, 1024, 1024}, {1024, 2048, 1000}}));
}

// Covers layout-15.
TEST(PaddedLayout, HolesInsideABucketCountAsContent) {
  const auto layout = padded_layout(sizes({97, 103}), {.shards = 2}).value();

  EXPECT_EQ(layout.parameters, (Parameters{{128, 225, 0}, {0, 103, 0}}));
  EXPECT_EQ(layout.buckets, (Buckets{{0, 256, 225}}));
}

// Covers buffer-2.
TEST(PaddedLayout, SmallWeightAndBiasFillOneAlignment) {
  for (int shards = 1; shards <= 128; shards *= 2) {
    const auto layout = padded_layout(sizes({16, 4}), {.shards = shards}).value();

    EXPECT_EQ(layout.parameters, (Parameters{{64, 80, 0}, {0, 4, 0}}));
    EXPECT_EQ(layout.buckets, (Buckets{{0, 128, 80}}));
  }
}

// Covers layout-17.
TEST(PaddedLayout, BusBandwidthPaddingRaisesBucketEnds) {
  const auto layout = padded_layout(sizes({1000}), {.shards = 2, .pad_for_bus_bandwidth = true}).value();

  EXPECT_EQ(layout.buckets, (Buckets{{0, 65536, 1000}}));
}

// Covers layout-25.
TEST(PaddedLayout, DenseAndExpertBuffersPadToTheirOwnGroups) {
  const auto dense = padded_layout(sizes({1000}), {.shards = 3}).value();
  const auto expert = padded_layout(sizes({1000}), {.shards = 256}).value();

  EXPECT_EQ(dense.elements, 1152);
  EXPECT_EQ(expert.elements, 1024);
}

// Covers layout-23.
TEST(PaddedLayout, EqualsThePlainOneWhereNoPaddingIsNeeded) {
  const auto parameters = sizes({640, 1280, 960});

  EXPECT_EQ(padded_layout(parameters, {}).value().parameters,
            plain_layout(parameters, {}).value().parameters);
  EXPECT_EQ(padded_layout(parameters, {}).value().buckets[0].unpadded, 2880);
}

struct BucketSizes {
  std::optional<std::int64_t> bucket_size;
  bool padded;
  bool bias;
  std::vector<std::pair<int, std::int64_t>> unpadded;  // how many buckets of which size
  std::vector<std::int64_t> padded_sizes;              // one for each of `unpadded`

  friend std::ostream& operator<<(std::ostream& out, const BucketSizes& of) {
    return out << (of.bucket_size ? "buckets_of_" + std::to_string(*of.bucket_size) : "one_bucket");
  }
};

class TenLayersOf95 : public testing::TestWithParam<BucketSizes> {};

// Ten layers of 95 x 95, with or without a bias of 95.
// Covers buffer-1.
TEST_P(TenLayersOf95, HaveTheReferenceBuckets) {
  const auto& test = GetParam();
  std::vector<LayoutParameter> parameters;
  for (int layer = 0; layer < 10; ++layer) {
    parameters.push_back({.elements = 95 * 95});
    if (test.bias) parameters.push_back({.elements = 95});
  }
  std::vector<std::int64_t> unpadded;
  std::vector<std::int64_t> padded;
  for (std::size_t i = 0; i < test.unpadded.size(); ++i) {
    for (int n = 0; n < test.unpadded[i].first; ++n) {
      unpadded.push_back(test.unpadded[i].second);
      padded.push_back(test.padded_sizes[i]);
    }
  }

  for (const int shards : {1, 2, 8}) {
    const LayoutOptions options{.bucket_size = test.bucket_size, .shards = shards};
    const auto layout =
        buffer_layout(test.padded ? LayoutPolicy::padded : LayoutPolicy::plain, parameters, options).value();

    ASSERT_EQ(layout.buckets.size(), unpadded.size());
    for (std::size_t i = 0; i < unpadded.size(); ++i) {
      EXPECT_EQ(layout.buckets[i].unpadded, unpadded[i]);
      EXPECT_EQ(layout.buckets[i].size(), padded[i]);
    }
  }
}

/// The bucket size, as the name of a test.
INSTANTIATE_TEST_SUITE_P(PaddedWithoutBias, TenLayersOf95,
                         testing::Values(BucketSizes{std::nullopt, true, false, {{1, 90817}}, {90880}},
                                         BucketSizes{9000, true, false, {{10, 9025}}, {9088}},
                                         BucketSizes{9025, true, false, {{10, 9025}}, {9088}},
                                         BucketSizes{9050, true, false, {{5, 18113}}, {18176}},
                                         BucketSizes{18000, true, false, {{5, 18113}}, {18176}},
                                         BucketSizes{18050, true, false, {{5, 18113}}, {18176}},
                                         BucketSizes{
                                             20000, true, false, {{3, 27201}, {1, 9025}}, {27264, 9088}}),
                         testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(PaddedWithBias, TenLayersOf95,
                         testing::Values(BucketSizes{std::nullopt, true, true, {{1, 92097}}, {92160}},
                                         BucketSizes{9000, true, true, {{10, 9153}}, {9216}},
                                         BucketSizes{9025, true, true, {{10, 9153}}, {9216}},
                                         BucketSizes{9050, true, true, {{10, 9153}}, {9216}},
                                         BucketSizes{18000, true, true, {{5, 18369}}, {18432}},
                                         BucketSizes{18050, true, true, {{5, 18369}}, {18432}},
                                         BucketSizes{
                                             20000, true, true, {{3, 27585}, {1, 9153}}, {27648, 9216}}),
                         testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(PlainWithoutBias, TenLayersOf95,
                         testing::Values(BucketSizes{std::nullopt, false, false, {{1, 90250}}, {90250}},
                                         BucketSizes{9000, false, false, {{10, 9025}}, {9025}},
                                         BucketSizes{9025, false, false, {{10, 9025}}, {9025}},
                                         BucketSizes{9050, false, false, {{5, 18050}}, {18050}},
                                         BucketSizes{18000, false, false, {{5, 18050}}, {18050}},
                                         BucketSizes{18050, false, false, {{5, 18050}}, {18050}},
                                         BucketSizes{
                                             20000, false, false, {{3, 27075}, {1, 9025}}, {27075, 9025}}),
                         testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(PlainWithBias, TenLayersOf95,
                         testing::Values(BucketSizes{std::nullopt, false, true, {{1, 91200}}, {91200}},
                                         BucketSizes{9000, false, true, {{10, 9120}}, {9120}},
                                         BucketSizes{9025, false, true, {{10, 9120}}, {9120}},
                                         BucketSizes{9050, false, true, {{10, 9120}}, {9120}},
                                         BucketSizes{18000, false, true, {{5, 18240}}, {18240}},
                                         BucketSizes{18050, false, true, {{5, 18240}}, {18240}},
                                         BucketSizes{
                                             20000, false, true, {{3, 27360}, {1, 9120}}, {27360, 9120}}),
                         testing::PrintToStringParamName());

// Covers buffer-2.
TEST(Ownership, FourRangesOfAParameterThatTwoShardsShare) {
  const auto layout = padded_layout(sizes({5000, 5000, 5000}), {.bucket_size = 8000, .shards = 2}).value();

  EXPECT_EQ(shard_range(layout, 0, 1), (ElementRange{5056, 10112}));
  EXPECT_EQ(shard_range(layout, 1, 0), (ElementRange{10112, 12672}));
  EXPECT_EQ(ownership(layout, 0, 0), (Ownership{.in_buffer = {10112, 12672},
                                                .in_bucket = {0, 2560},
                                                .in_shard = {0, 2560},
                                                .in_parameter = {0, 2560}}));
  EXPECT_EQ(ownership(layout, 0, 1), (Ownership{.in_buffer = {12672, 15112},
                                                .in_bucket = {2560, 5000},
                                                .in_shard = {0, 2440},
                                                .in_parameter = {2560, 5000}}));
}

// Covers buffer-2.
TEST(Ownership, AShardWithoutElementsOfAParameterOwnsNothing) {
  const auto layout = padded_layout(sizes({5000, 5000, 5000}), {.bucket_size = 8000, .shards = 2}).value();

  EXPECT_EQ(ownership(layout, 1, 0), std::nullopt);  // starts exactly at the border
  EXPECT_EQ(ownership(layout, 2, 1), std::nullopt);
  EXPECT_EQ(ownership(layout, 2, 0)->in_parameter, (ElementRange{0, 5000}));
}

TEST(BufferLayout, BadInputIsAnErrorThatNamesIt) {
  const auto no_shards = padded_layout(sizes({10}), {.shards = 0});
  const auto no_bucket = padded_layout(sizes({10}), {.bucket_size = 0});
  const auto negative = plain_layout(sizes({10, -1}), {});
  const auto too_large = plain_layout(sizes({std::int64_t{1} << 50, 1}), {});
  const auto rows = buffer_layout(LayoutPolicy::row_aligned, sizes({10}), {});

  EXPECT_NE(no_shards.error().message.find("not over 0"), std::string::npos);
  EXPECT_NE(no_bucket.error().message.find("not 0; leave it out"), std::string::npos);
  EXPECT_NE(negative.error().message.find("parameter 1 has -1 elements"), std::string::npos);
  EXPECT_NE(too_large.error().message.find("parameter 1 has 1 elements"), std::string::npos);
  EXPECT_FALSE(rows);
}

}  // namespace
}  // namespace troupe::core
