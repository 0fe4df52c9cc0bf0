#include "gpu/collective/reduce.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/gpu/collective/reference.hpp"

namespace troupe::gpu {
namespace {

template <class T>
std::vector<T> reduce(core::DType dtype, ReduceOp op, const std::vector<std::vector<T>>& inputs) {
  std::vector<const std::byte*> sources;
  for (const auto& input : inputs) sources.push_back(reinterpret_cast<const std::byte*>(input.data()));
  std::vector<T> output(inputs[0].size());
  reduce_in_order(dtype, op, sources, reinterpret_cast<std::byte*>(output.data()), output.size());
  return output;
}

TEST(ReduceInOrder, AddsFromTheFirstRankToTheLast) {
  // From left to right 2^24 swallows each 1; from right to left the ones would count.
  const float big = 16777216;

  EXPECT_EQ(reduce<float>(core::DType::f32, ReduceOp::sum, {{big}, {1}, {1}}), std::vector<float>{big});
  EXPECT_EQ(reduce<float>(core::DType::f32, ReduceOp::sum, {{1}, {1}, {big}}), std::vector<float>{big + 2});
}

// Covers reduce-2.
TEST(ReduceInOrder, RoundsANarrowSumOnce) {
  // 256 + 1 + 1 = 258 is a bf16; rounded after each step it would stay 256.
  const std::uint16_t big = 0x4380;
  const std::uint16_t one = 0x3f80;

  EXPECT_EQ(reduce<std::uint16_t>(core::DType::bf16, ReduceOp::sum, {{big}, {one}, {one}}),
            std::vector<std::uint16_t>{0x4381});
}

// Covers unit-7.
TEST(ReduceInOrder, AveragesBeforeTheRounding) {
  // (65504 + 65504) / 2 fits a half, the sum does not.
  EXPECT_EQ(reduce<std::uint16_t>(core::DType::f16, ReduceOp::average, {{0x7bff}, {0x7bff}}),
            std::vector<std::uint16_t>{0x7bff});
  EXPECT_EQ(reduce<std::uint16_t>(core::DType::f16, ReduceOp::sum, {{0x7bff}, {0x7bff}}),
            std::vector<std::uint16_t>{0x7c00});
}

TEST(ReduceInOrder, LetsIntegersWrapAround) {
  EXPECT_EQ(reduce<std::int8_t>(core::DType::i8, ReduceOp::sum, {{127}, {1}}),
            std::vector<std::int8_t>{-128});
}

TEST(ReduceInOrder, ShowsANanInMinAndMax) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    EXPECT_TRUE(std::isnan(reduce<float>(core::DType::f32, op, {{nan}, {1}, {2}})[0]));
    EXPECT_TRUE(std::isnan(reduce<float>(core::DType::f32, op, {{1}, {2}, {nan}})[0]));
  }
}

TEST(ReduceInOrder, GivesTheSameBitsHoweverARangeIsCut) {
  std::mt19937_64 random(3);
  for (const core::DType dtype : {core::DType::f32, core::DType::f16, core::DType::bf16}) {
    const std::size_t width = core::size_of(dtype);
    const std::vector<Bytes> inputs{random_elements(dtype, 5000, random),
                                    random_elements(dtype, 5000, random),
                                    random_elements(dtype, 5000, random)};
    const Bytes expected = reference_reduce(dtype, ReduceOp::sum, inputs);
    for (const std::size_t piece : {1, 7, 1024, 1025, 5000}) {
      Bytes output(expected.size());
      for (std::size_t begin = 0; begin < 5000; begin += piece) {
        const std::array sources{inputs[0].data() + begin * width, inputs[1].data() + begin * width,
                                 inputs[2].data() + begin * width};
        reduce_in_order(dtype, ReduceOp::sum, sources, output.data() + begin * width,
                        std::min(piece, 5000 - begin));
      }
      EXPECT_TRUE(output == expected) << core::name_of(dtype) << " in pieces of " << piece;
    }
  }
}

TEST(ReduceInOrder, AgreesWithTheExactConversionsOnEveryNarrowValue) {
  for (const core::DType dtype : {core::DType::f16, core::DType::bf16}) {
    std::vector<std::uint16_t> all(65536);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    // max(x, x) goes through both conversions.
    const auto output = reduce<std::uint16_t>(dtype, ReduceOp::max, {all, all});
    for (std::size_t i = 0; i < all.size(); ++i) {
      const bool half = dtype == core::DType::f16;
      const float value = half ? core::f16_to_float(all[i]) : core::bf16_to_float(all[i]);
      const std::uint16_t expected = half ? core::float_to_f16(value) : core::float_to_bf16(value);
      ASSERT_EQ(output[i], expected) << core::name_of(dtype) << " " << i;
    }
  }
}

}  // namespace
}  // namespace troupe::gpu
