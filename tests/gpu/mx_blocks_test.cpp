#include "core/mx_blocks.hpp"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/gpu/host/kernels/numbers.hpp"
#include "tests/gpu/place.hpp"
#include "tests/support/mx_reference.hpp"

namespace troupe::gpu {
namespace {

using core::DType;

constexpr std::array kElements = {DType::f8_e4m3, DType::f8_e5m2};
constexpr std::size_t kBlock = tests::kMxBlock;

/// A block for every `stride`th finite magnitude of bf16, which is its largest; and what is below that, down
/// to where nothing is left of it, has all kinds of distances from it.
std::vector<float> blocks_of_every_magnitude(std::uint32_t stride) {
  std::mt19937 bits(1);
  std::vector<float> values;
  for (std::uint32_t upper = 0; upper < 0x7f80; upper += stride) {
    const float largest = std::bit_cast<float>(upper << 16 | static_cast<std::uint32_t>(bits() % 0x10000U));
    const std::size_t place = bits() % kBlock;
    for (std::size_t i = 0; i < kBlock; ++i) {
      const float below = std::ldexp(largest, -static_cast<int>(bits() % 24));
      const float part = static_cast<float>(bits() % 4096) / 4096;
      const float value = i == place ? largest : bits() % 4 == 0 ? below : below * part;
      values.push_back(bits() % 2 == 0 ? value : -value);
    }
  }
  return values;
}

/// Every number of bf16, NaN and Inf among them.
std::vector<float> every_bf16() {
  std::vector<float> values;
  for (std::uint32_t i = 0; i < 0x10000; ++i) values.push_back(std::bit_cast<float>(i << 16));
  return values;
}

class MxBlocks : public testing::TestWithParam<PlaceUnderTest>, protected AtPlace {
 protected:
  void SetUp() override { open(GetParam()); }

  std::vector<std::uint8_t> packed(DType element, const Vector& values) {
    std::vector<std::uint8_t> bytes(
        static_cast<std::size_t>(core::mx_bytes(static_cast<std::int64_t>(values.count()))));
    const Buffer memory = place().allocate(bytes.size());
    run([&](auto... stream) { pack_mx(element, values.elements(), memory.view(), stream...); });
    place().read(memory.view(), bytes.data());
    return bytes;
  }

  Vector rounded_to_mx(DType element, const Vector& values, DType dtype) {
    auto found = vector(dtype, values.count());
    run([&](auto... stream) { round_to_mx(element, values.elements(), found.elements(), stream...); });
    return found;
  }

  void expect_reference(DType element, const std::vector<float>& numbers) {
    const auto expected = tests::reference_mx(element, numbers);
    const auto values = vector(DType::f32, numbers);

    expect_same(rounded_to_mx(element, values, DType::f32), expected.values);
    const auto narrow = rounded_to_mx(element, values, DType::bf16);
    expect_same(narrow, expected.values);  // bf16 holds every one
    EXPECT_EQ(packed(element, values), expected.packed);
    EXPECT_EQ(packed(element, narrow), expected.packed) << "another time changes nothing";
    expect_same(rounded_to_mx(element, narrow, DType::bf16), expected.values);
  }
};

// Covers shard-7.
TEST_P(MxBlocks, AreThoseOfTheSpecification) {
  for (const auto element : kElements) {
    expect_reference(element, mixed_numbers(64 * kBlock, 1));
    expect_reference(element, mixed_numbers(64 * kBlock, 2, true));
    expect_reference(element, every_bf16());
    expect_reference(element, std::vector<float>(2 * kBlock, 0.0F));
  }
}

TEST_P(MxBlocks, OfEveryMagnitudeAreTheNearestThatBf16Holds) {
  for (const auto element : kElements) expect_reference(element, blocks_of_every_magnitude(7));
}

TEST_P(MxBlocks, SaturateAtTheLargestElement) {
  for (const auto element : kElements) {
    std::vector<float> numbers(kBlock, 1.0F);
    numbers[3] = 1.9999F;
    numbers[4] = -1.9999F;

    const auto found = rounded_to_mx(element, vector(DType::f32, numbers), DType::f32).values();

    EXPECT_EQ(found[3], 1.75F);
    EXPECT_EQ(found[4], -1.75F);
    EXPECT_EQ(found[0], 1.0F);
  }
}

TEST_P(MxBlocks, WithNanOrInfAreNanThroughoutAndAlone) {
  for (const float wrong : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> numbers(3 * kBlock, 0.5F);
    numbers[kBlock + 31] = wrong;

    const auto found = rounded_to_mx(DType::f8_e4m3, vector(DType::f32, numbers), DType::bf16).values();

    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(std::isnan(found[i]), i / kBlock == 1) << i;
    }
  }
}

TEST_P(MxBlocks, MayEndShortAndBeRoundedInPlace) {
  for (const auto element : kElements) {
    for (const std::size_t count : kCounts) {
      const auto numbers = mixed_numbers(count, 3);
      const auto values = vector(DType::bf16, numbers);
      const auto expected = tests::reference_mx(element, values.values()).values;

      run([&](auto... stream) { round_to_mx(element, values.elements(), values.elements(), stream...); });

      expect_same(values, expected);
    }
  }
}

/// Parts of any whole blocks, so that bytes begin at odd places.
TEST_P(MxBlocks, AreUnpackedFromTheirParts) {
  for (const auto element : kElements) {
    for (const std::size_t part : {kBlock, 3 * kBlock, 8 * kBlock, 40 * kBlock}) {
      constexpr std::size_t kParts = 3;
      const auto source = vector(DType::bf16, mixed_numbers(kParts * part, 4));
      const auto bytes = static_cast<std::size_t>(core::mx_bytes(static_cast<std::int64_t>(part)));
      const Buffer memory = place().allocate(kParts * bytes);
      const auto found = vector(DType::bf16, kParts * part);

      for (std::size_t i = 0; i < kParts; ++i) {
        run([&](auto... stream) {
          pack_mx(element, source.elements().part(i * part, part), memory.view().subview(i * bytes, bytes),
                  stream...);
        });
      }
      run([&](auto... stream) { unpack_mx(element, memory.view(), part, found.elements(), stream...); });

      expect_same(found, tests::reference_mx(element, source.values()).values);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Places, MxBlocks, testing::ValuesIn(places_under_test()),
                         [](const auto& under_test) { return under_test.param.name; });

}  // namespace
}  // namespace troupe::gpu
