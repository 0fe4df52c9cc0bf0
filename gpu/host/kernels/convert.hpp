#pragma once

#include <cstddef>

#include "core/dtype.hpp"
#include "gpu/host/kernels/instructions.hpp"

namespace troupe::gpu {

/// Conversions of many elements between one dtype and fp32, with the bits of core/dtype.hpp except for the
/// choice of NaN. Source and destination do not overlap.
struct Converter {
  void (*widen)(const std::byte* source, float* destination, std::size_t count);
  void (*narrow)(const float* source, std::byte* destination, std::size_t count);
  /// The fp32 sum of two ranges, without a widened copy of either.
  void (*add)(const std::byte* a, const std::byte* b, float* sum, std::size_t count);
};

/// For the floating dtypes up to 32 bits; any other is a programming error.
Converter converter_of(core::DType dtype, InstructionSet instructions);
Converter converter_of(core::DType dtype);

}  // namespace troupe::gpu
