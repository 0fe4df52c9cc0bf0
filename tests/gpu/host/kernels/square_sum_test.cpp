#include "gpu/host/kernels/square_sum.hpp"

#include <gtest/gtest.h>
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "tests/gpu/host/kernels/instruction_sets.hpp"
#include "tests/gpu/host/kernels/numbers.hpp"

namespace troupe::gpu {
namespace {

class SquareAdders : public testing::TestWithParam<InstructionSet> {
 protected:
  void SetUp() override {
    if (GetParam() > best_instruction_set()) GTEST_SKIP() << "this machine has no " << GetParam();
  }

  /// The sum of ExactSquareSum itself is the reference, tested against arithmetic of long integers.
  void expect_exact(std::span<const float> values, const std::string& what) {
    core::ExactSquareSum expected;
    // Limbs that a collective has left large.
    for (auto& limb : expected.limbs) limb = (std::int64_t{1} << 62) - 12345;
    core::ExactSquareSum found = expected;
    core::ExactSquareSum in_parts = expected;
    expected.accumulate(values);

    SquareAdder(found, GetParam()).add(values);
    SquareAdder parts(in_parts, GetParam());
    std::size_t first = 0;
    for (std::size_t length = 1; first < values.size(); length = length * 3 + 1) {
      const auto part = values.subspan(first, std::min(length, values.size() - first));
      parts.add(part, length % 2 == 0);
      first += part.size();
    }

    // Nothing was added, so nothing was carried.
    if (values.empty()) return;
    EXPECT_EQ(found, expected) << what;
    EXPECT_EQ(in_parts, expected) << what;
    expect_exact_bf16(values, what);
  }

  void expect_exact_bf16(std::span<const float> values, const std::string& what) {
    std::vector<std::uint16_t> codes;
    std::vector<float> rounded;
    for (const float value : values) {
      codes.push_back(core::float_to_bf16(value));
      rounded.push_back(core::bf16_to_float(codes.back()));
    }
    core::ExactSquareSum expected;
    expected.accumulate(rounded);
    core::ExactSquareSum found;
    SquareAdder(found, GetParam()).add_bf16(codes);
    EXPECT_EQ(found, expected) << what << " as bf16";
  }
};

std::vector<float> normal(std::size_t count, double scale, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> draw;
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(draw(random) * scale);
  return values;
}

TEST_P(SquareAdders, GiveTheReferencesBitsForAnyCount) {
  for (const std::size_t count : kCounts) expect_exact(normal(count, 1e-3, 1), std::to_string(count));
  for (const std::size_t count : {4095, 4096, 4097, 8191, 100'000}) {
    expect_exact(normal(count, 1, 2), std::to_string(count));
  }
}

TEST_P(SquareAdders, GiveTheReferencesBitsAtAnyScale) {
  for (int exponent = -160; exponent <= 127; ++exponent) {
    expect_exact(normal(5000, std::ldexp(1.0, exponent), 3), "2^" + std::to_string(exponent));
  }
}

TEST_P(SquareAdders, GiveTheReferencesBitsForAnyRangeOfMagnitudes) {
  std::mt19937 random(4);
  for (int width = 1; width <= 280; width += 3) {
    std::vector<float> values(6000);
    for (float& value : values) {
      const int exponent = 127 - static_cast<int>(random() % static_cast<unsigned>(width));
      value = std::ldexp(static_cast<float>(1 + random() % 0xff'ffff), exponent - 24);
    }
    expect_exact(values, std::to_string(width) + " binades");
  }
}

TEST_P(SquareAdders, GiveTheReferencesBitsForAnyBits) {
  std::mt19937 random(5);
  std::vector<float> values(20'000);
  for (int round = 0; round < 20; ++round) {
    for (float& value : values) value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    expect_exact(values, "any bits");
  }
  expect_exact(mixed_numbers(40'000, 6, true), "with numbers that are not finite");
}

/// Sums in registers are largest here, and nothing may wrap.
TEST_P(SquareAdders, GiveTheReferencesBitsOfTheLargestMantissas) {
  for (const int below : {0, 1, 2, 22, 23, 24, 28, 29, 30}) {
    for (const float top : {0x1.fffffep127F, 0x1.fffffep0F, 0x1.fffffep-60F}) {
      std::vector<float> values(10'000, top);
      for (std::size_t i = 0; i < values.size(); i += 7) values[i] = -std::ldexp(top, -below);
      expect_exact(values, std::to_string(top) + " and 2^" + std::to_string(below) + " less");
    }
  }
}

TEST_P(SquareAdders, GiveTheReferencesBitsAroundAWindowsEdges) {
  for (int field = 1; field < 255; ++field) {
    std::vector<float> values(64, std::bit_cast<float>(static_cast<std::uint32_t>(field) << 23));
    for (int below = 19; below < 33; ++below) {
      for (const std::uint32_t mantissa : {0U, 1U, 0x7f'ffffU}) {
        const auto lower = static_cast<std::uint32_t>(std::max(field - below, 0));
        values.push_back(std::bit_cast<float>(lower << 23 | mantissa));
        values.push_back(0);
      }
      // The window of the first values is then that of the others.
      expect_exact(values, std::to_string(field) + " and " + std::to_string(below) + " less");
    }
  }
}

TEST_P(SquareAdders, GiveTheReferencesBitsOfSparseValuesAndDenormals) {
  std::mt19937 random(8);
  for (const float scale : {1.0F, 1e-30F, 1e-38F, 1e-42F}) {
    auto values = normal(30'000, scale, 9);
    for (float& value : values) {
      if (random() % 100 != 0) value = random() % 2 == 0 ? 0.0F : -0.0F;
    }
    expect_exact(values, "sparse");
    values.insert(values.end(), 9000, std::bit_cast<float>(1U));
    expect_exact(values, "and denormals");
  }
}

/// A trainer may have told the processor so, and threads inherit it.
TEST_P(SquareAdders, KeepDenormalsWhereTheProcessorTakesThemForZero) {
  auto values = normal(6000, 1e-38, 10);
  values.insert(values.end(), 5000, std::bit_cast<float>(0x12345U));
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040U);
  expect_exact(values, "denormals are zero");
  _mm_setcsr(before);
}

INSTANTIATE_TEST_SUITE_P(All, SquareAdders,
                         testing::Values(InstructionSet::plain, InstructionSet::avx2, InstructionSet::avx512),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace troupe::gpu
