#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu/host/kernels/arithmetic.hpp"
#include "gpu/host/kernels/blocks.hpp"
#include "gpu/kernel_checks.hpp"
#include "gpu/kernels.hpp"

namespace troupe::gpu {

void add_squares(ConstElements values, BufferView sum) {
  check_add_squares(sum);
  auto& exact = sum.as<core::ExactSquareSum>()[0];
  if (values.dtype == core::DType::f32) return exact.accumulate(values.view.as<float>());
  // Every call of accumulate() has a fixed cost, which these longer blocks spread over more values.
  constexpr std::size_t kLongBlock = 16 * kBlockElements;
  const Reader reader(values);
  std::vector<float> block(kLongBlock);
  for (std::size_t first = 0; first < values.count(); first += kLongBlock) {
    const std::size_t length = std::min(kLongBlock, values.count() - first);
    exact.accumulate({reader.read(first, length, block.data()), length});
  }
}

void add_square_sums(ConstBufferView parts, BufferView into) {
  check_add_square_sums(parts, into);
  auto& sum = into.as<core::ExactSquareSum>()[0];
  for (const auto& part : parts.as<core::ExactSquareSum>()) sum.add(part);
}

void raise_to_largest(ConstElements values, BufferView largest) {
  check_raise_to_largest(largest);
  auto& result = largest.as<std::uint32_t>()[0];
  const Reader reader(values);
  Block block;
  for_each_block(values.count(), [&](std::size_t first, std::size_t length) {
    result = std::max(result, largest_magnitude(reader.read(first, length, block.data()), length));
  });
}

}  // namespace troupe::gpu
