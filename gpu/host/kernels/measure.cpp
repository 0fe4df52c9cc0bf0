#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "gpu/host/kernels/arithmetic.hpp"
#include "gpu/host/kernels/blocks.hpp"
#include "gpu/host/kernels/square_sum.hpp"
#include "gpu/kernel_checks.hpp"
#include "gpu/kernels.hpp"

namespace troupe::gpu {

void add_squares(ConstElements values, BufferView sum) {
  check_add_squares(sum);
  SquareAdder adder(sum.as<core::ExactSquareSum>()[0]);
  if (values.dtype == core::DType::f32) return adder.add(values.view.as<float>());
  if (values.dtype == core::DType::bf16) return adder.add_bf16(values.view.as<std::uint16_t>());
  // Every call of add() has a fixed cost, which these longer blocks spread over more values.
  std::array<float, 8 * kBlockElements> block;
  const Reader reader(values);
  for (std::size_t first = 0; first < values.count(); first += block.size()) {
    const std::size_t length = std::min(block.size(), values.count() - first);
    adder.add({reader.read(first, length, block.data()), length}, true);
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
