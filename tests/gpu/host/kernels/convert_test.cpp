#include "gpu/host/kernels/convert.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <string>
#include <tuple>
#include <vector>

#include "tests/gpu/host/kernels/instruction_sets.hpp"
#include "tests/gpu/host/kernels/numbers.hpp"
#include "tests/support/printing.hpp"

namespace troupe::gpu {
namespace {

using core::DType;

class Conversion : public testing::TestWithParam<std::tuple<DType, InstructionSet>> {
 protected:
  void SetUp() override {
    if (instructions() > best_instruction_set()) GTEST_SKIP() << "this machine has no " << instructions();
  }

  static DType dtype() { return std::get<0>(GetParam()); }
  static InstructionSet instructions() { return std::get<1>(GetParam()); }
  static std::size_t size() { return core::size_of(dtype()); }
  Converter converter_ = converter_of(dtype(), instructions());

  /// Compares the conversion of every value with the scalar one of core.
  void expect_narrowed(const std::vector<float>& values) {
    std::vector<std::byte> codes(values.size() * size());
    converter_.narrow(values.data(), codes.data(), values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::uint32_t code = 0;
      std::memcpy(&code, &codes[i * size()], size());
      ASSERT_EQ(code, reference_narrow(dtype(), values[i]))
          << "of bits " << std::bit_cast<std::uint32_t>(values[i]);
    }
  }
};

TEST_P(Conversion, WidensEveryCodeExactly) {
  const std::size_t codes = std::size_t{1} << std::min<std::size_t>(16, 8 * size());
  std::vector<std::byte> source(codes * size());
  for (std::uint32_t code = 0; code < codes; ++code) {
    // fp32 has too many codes; some of every exponent will do.
    const std::uint32_t bits = size() == 4 ? code << 16 | code : code;
    std::memcpy(&source[code * size()], &bits, size());
  }
  std::vector<float> values(codes);

  converter_.widen(source.data(), values.data(), codes);

  for (std::size_t i = 0; i < codes; ++i) {
    ASSERT_TRUE(same(values[i], reference_widen(dtype(), &source[i * size()]))) << "code " << i;
  }
}

TEST_P(Conversion, RoundsEveryUpperHalfToNearestEven) {
  // The lower halves around a tie of every format.
  for (const std::uint32_t low : {0U, 1U, 0x0fffU, 0x1000U, 0x1001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
    std::vector<float> values(0x10000);
    for (std::uint32_t high = 0; high < values.size(); ++high) {
      values[high] = std::bit_cast<float>(high << 16 | low);
    }
    expect_narrowed(values);
  }
}

TEST_P(Conversion, ConvertsOddCountsAsItDoesWholeVectors) {
  for (const std::size_t count : kCounts) expect_narrowed(mixed_numbers(count, 17, true));
}

TEST_P(Conversion, AddsTwoRangesAsIfTheyWereWidenedFirst) {
  for (const std::size_t count : kCounts) {
    const auto a = codes_of(dtype(), mixed_numbers(count, 18, true));
    const auto b = codes_of(dtype(), mixed_numbers(count, 19, true));
    std::vector<float> sum(count + 1, -1.0F);

    converter_.add(a.data(), b.data(), sum.data(), count);

    for (std::size_t i = 0; i < count; ++i) {
      const float expected =
          reference_widen(dtype(), &a[i * size()]) + reference_widen(dtype(), &b[i * size()]);
      ASSERT_TRUE(same(sum[i], expected)) << i << " of " << count;
    }
    EXPECT_EQ(sum[count], -1.0F);
  }
}

TEST_P(Conversion, WritesNothingBeyondItsCount) {
  const auto values = mixed_numbers(64, 3);
  for (std::size_t count = 0; count < values.size(); ++count) {
    std::vector<std::byte> codes(values.size() * size(), std::byte{0x5a});
    std::vector<float> widened(values.size(), -1.0F);

    converter_.narrow(values.data(), codes.data(), count);
    converter_.widen(codes.data(), widened.data(), count);

    EXPECT_EQ(codes[count * size()], std::byte{0x5a});
    EXPECT_EQ(widened[count], -1.0F);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Conversion,
    testing::Combine(testing::Values(DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::f8_e5m2),
                     testing::Values(InstructionSet::plain, InstructionSet::avx2, InstructionSet::avx512)),
    [](const auto& of) {
      return testing::PrintToString(std::get<0>(of.param)) + "_" +
             testing::PrintToString(std::get<1>(of.param));
    });

}  // namespace
}  // namespace troupe::gpu
