#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "core/check.hpp"
#include "gpu/host/kernels/blocks.hpp"
#include "gpu/kernels.hpp"

namespace troupe::gpu {

void add_squares(ConstElements values, BufferView sum) {
  CHECK(sum.bytes == sizeof(core::ExactSquareSum), "squares are added to one exact sum");
  auto& exact = sum.as<core::ExactSquareSum>()[0];
  if (values.dtype == core::DType::f32) return exact.accumulate(values.view.as<float>());
  // Every call of accumulate() has a price; longer blocks than the others' share it among more values.
  constexpr std::size_t kLongBlock = 16 * kBlockElements;
  const Reader reader(values);
  std::vector<float> block(kLongBlock);
  for (std::size_t first = 0; first < values.count(); first += kLongBlock) {
    const std::size_t length = std::min(kLongBlock, values.count() - first);
    exact.accumulate({reader.read(first, length, block.data()), length});
  }
}

void raise_to_largest(ConstElements values, BufferView largest) {
  CHECK(largest.bytes == sizeof(std::uint32_t), "the largest magnitude is one word");
  auto& result = largest.as<std::uint32_t>()[0];
  // Without their sign floats order as integers, and signed integers compare faster.
  auto found = static_cast<std::int32_t>(result);
  const Reader reader(values);
  Block block;
  for_each_block(values.count(), [&](std::size_t first, std::size_t length) {
    const float* source = reader.read(first, length, block.data());
    for (std::size_t i = 0; i < length; ++i) {
      found = std::max(found, std::bit_cast<std::int32_t>(source[i]) & 0x7fff'ffff);
    }
  });
  result = static_cast<std::uint32_t>(found);
}

}  // namespace troupe::gpu
