#include "core/convert.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

namespace troupe::core {
namespace {

TEST(ConvertedElements, OfTheSameDTypeAreTheirBytes) {
  const std::vector<float> values{1.5F, -0.0F, 3e38F};
  std::vector<float> copied(3);

  convert_elements(DType::f32, std::as_bytes(std::span(values)).data(), DType::f32,
                   std::as_writable_bytes(std::span(copied)).data(), 3);

  EXPECT_EQ(copied, values);
}

TEST(ConvertedElements, AreRoundedToTheNearestTiesToEven) {
  // 1 + 2^-8 and 1 + 3 * 2^-8 lie in the middle between two of bf16.
  const std::vector<float> values{1.0F, 1.00390625F, 1.01171875F, -2.0F};
  std::vector<std::uint16_t> narrow(4);

  convert_elements(DType::f32, std::as_bytes(std::span(values)).data(), DType::bf16,
                   std::as_writable_bytes(std::span(narrow)).data(), 4);

  EXPECT_EQ(narrow, (std::vector<std::uint16_t>{0x3f80, 0x3f80, 0x3f82, 0xc000}));
}

// Nothing has no memory. UndefinedBehaviorSanitizer objects to copying from there.
TEST(ConvertedElements, MayBeNone) {
  convert_elements(DType::f32, nullptr, DType::f32, nullptr, 0);
  convert_elements(DType::f32, nullptr, DType::bf16, nullptr, 0);
}

}  // namespace
}  // namespace troupe::core
