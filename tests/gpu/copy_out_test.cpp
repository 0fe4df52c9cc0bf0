#include "gpu/copy_out.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace troupe::gpu {
namespace {

constexpr std::size_t kAround = 256;

/// Copies this many bytes from one offset to another; what is around the destination stays.
void expect_copied(std::size_t bytes, std::size_t from, std::size_t to) {
  std::vector<std::byte> source(bytes + 2 * kAround), destination(bytes + 2 * kAround, std::byte{0xee});
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 31 + i / 251);
  auto expected = destination;
  std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(from), bytes,
              expected.begin() + static_cast<std::ptrdiff_t>(to));

  copy_out({source.data() + from, bytes}, {destination.data() + to, bytes});

  EXPECT_TRUE(destination == expected) << bytes << " bytes from " << from << " to " << to;
}

TEST(CopyOut, CopiesAllBytesAndNoOthersWhereverTheyAre) {
  for (const std::size_t bytes :
       {0, 1, 15, 63, 64, 65, 4095, 4096, 16383, 16384, 16385, 16447, 16448, 65536, 70001})
    for (const std::size_t from : {0, 1, 16, 63})
      for (const std::size_t to : {0, 1, 15, 64, 100}) expect_copied(bytes, from, to);
}

}  // namespace
}  // namespace troupe::gpu
