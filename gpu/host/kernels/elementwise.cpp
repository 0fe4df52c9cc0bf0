#include <algorithm>
#include <cstring>

#include "gpu/host/kernels/arithmetic.hpp"
#include "gpu/host/kernels/blocks.hpp"
#include "gpu/kernel_checks.hpp"
#include "gpu/kernels.hpp"

namespace troupe::gpu {

void copy(ConstBufferView source, BufferView destination) {
  check_copy(source, destination);
  if (source.bytes > 0) std::memmove(destination.data, source.data, source.bytes);
}

void zero(BufferView destination) {
  if (destination.bytes > 0) std::memset(destination.data, 0, destination.bytes);
}

void pack(std::span<const ConstBufferView> ranges, BufferView flat) {
  check_ranges(ranges, flat.bytes);
  std::size_t offset = 0;
  for (const ConstBufferView range : ranges) {
    copy(range, flat.subview(offset, range.bytes));
    offset += range.bytes;
  }
}

void unpack(ConstBufferView flat, std::span<const BufferView> ranges) {
  check_ranges(ranges, flat.bytes);
  std::size_t offset = 0;
  for (const BufferView range : ranges) {
    copy(flat.subview(offset, range.bytes), range);
    offset += range.bytes;
  }
}

void pack(std::span<const ConstElements> ranges, Elements flat) {
  check_element_ranges(ranges, flat.count());
  std::size_t first = 0;
  for (const ConstElements& range : ranges) {
    cast(range, flat.part(first, range.count()));
    first += range.count();
  }
}

void unpack(ConstElements flat, std::span<const Elements> ranges) {
  check_element_ranges(ranges, flat.count());
  std::size_t first = 0;
  for (const Elements& range : ranges) {
    cast(flat.part(first, range.count()), range);
    first += range.count();
  }
}

void fill(Elements destination, float value) {
  const Writer writer(destination);
  Block block;
  for_each_block(destination.count(), [&](std::size_t first, std::size_t length) {
    float* target = writer.target(first, block.data());
    std::fill_n(target, length, value);
    writer.commit(first, length, target);
  });
}

void cast(ConstElements source, Elements destination) {
  check_cast(source, destination);
  if (source.dtype == destination.dtype) return copy(source.view, destination.view);
  if (destination.dtype == core::DType::f32) {
    float* values = destination.view.as<float>().data();
    return converter_of(source.dtype).widen(source.view.data, values, source.count());
  }
  const Reader reader(source);
  const auto narrow = converter_of(destination.dtype).narrow;
  const std::size_t size = core::size_of(destination.dtype);
  Block block;
  for_each_block(source.count(), [&](std::size_t first, std::size_t length) {
    narrow(reader.read(first, length, block.data()), destination.view.data + first * size, length);
  });
}

void round_to(core::DType narrow, Elements values) {
  if (narrow == values.dtype) return;
  const Reader reader(values);
  const Writer writer(values);
  const Converter between = converter_of(narrow);
  Block block;
  std::array<std::byte, kBlockElements * sizeof(float)> rounded;
  for_each_block(values.count(), [&](std::size_t first, std::size_t length) {
    between.narrow(reader.read(first, length, block.data()), rounded.data(), length);
    float* target = writer.target(first, block.data());
    between.widen(rounded.data(), target, length);
    writer.commit(first, length, target);
  });
}

void scale(Elements values, float factor) {
  const Reader reader(values);
  const Writer writer(values);
  Block block;
  for_each_block(values.count(), [&](std::size_t first, std::size_t length) {
    const float* source = reader.read(first, length, block.data());
    float* target = writer.target(first, block.data());
    multiply(source, factor, target, length);
    writer.commit(first, length, target);
  });
}

void accumulate(ConstElements source, Elements destination) {
  check_accumulate(source, destination);
  const Reader addend(source);
  const Reader reader(destination);
  const Writer writer(destination);
  Block block;
  Block addend_block;
  for_each_block(source.count(), [&](std::size_t first, std::size_t length) {
    float* target = writer.target(first, block.data());
    if (source.dtype == destination.dtype) {
      reader.add(first, addend, first, length, target);
    } else {
      const float* more = addend.read(first, length, addend_block.data());
      add(reader.read(first, length, block.data()), more, target, length);
    }
    writer.commit(first, length, target);
  });
}

}  // namespace troupe::gpu
