#include "gpu/buffer.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <type_traits>
#include <vector>

namespace troupe::gpu {
namespace {

TEST(ViewOf, TakesAnyContiguousRangeAndKeepsItsConstness) {
  std::vector<float> vector(3);
  std::array<double, 2> array{};
  int plain[5] = {};
  std::string text = "four";
  const std::vector<float> fixed(7);

  static_assert(std::is_same_v<decltype(view_of(vector)), BufferView>);
  static_assert(std::is_same_v<decltype(view_of(std::span<float>(vector))), BufferView>);
  static_assert(std::is_same_v<decltype(view_of(std::span<const float>(vector))), ConstBufferView>);
  static_assert(std::is_same_v<decltype(view_of(fixed)), ConstBufferView>);
  EXPECT_EQ(view_of(vector).bytes, 12U);
  EXPECT_EQ(view_of(vector).data, reinterpret_cast<std::byte*>(vector.data()));
  EXPECT_EQ(view_of(array).bytes, 16U);
  EXPECT_EQ(view_of(plain).bytes, 20U);
  EXPECT_EQ(view_of(text).bytes, 4U);
  EXPECT_EQ(view_of(fixed).bytes, 28U);
  EXPECT_EQ(view_of(std::span(vector).subspan(1)).bytes, 8U);
  EXPECT_EQ(view_of(std::span(&plain[1], 1)).bytes, 4U);
}

}  // namespace
}  // namespace troupe::gpu
