#pragma once

#include <cstdint>

#include "core/dtype.hpp"

namespace troupe::core {

/// Microscaling blocks (OCP Microscaling Formats 1.0, MXFP8): 32 neighbouring elements in f8_e4m3 or f8_e5m2,
/// and a one-byte scale (E8M0), the power of two that multiplies them. gpu/kernels.hpp says which power.
inline constexpr std::int64_t kMxBlockElements = 32;

/// Parts of a flat tensor that is sent in blocks are multiples of this: no part cuts a block, and the bytes
/// of each part begin at a multiple of 8.
inline constexpr std::int64_t kMxPartElements = 256;

/// Whether blocks may have elements of this dtype.
constexpr bool is_mx_element(DType dtype) {
  return dtype == DType::f8_e4m3 || dtype == DType::f8_e5m2;
}

/// The size of whole blocks: their elements, then their scales.
constexpr std::int64_t mx_bytes(std::int64_t elements) {
  return elements + elements / kMxBlockElements;
}

}  // namespace troupe::core
