#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/result.hpp"

namespace troupe::core {

/// Element types of tensors. The order is part of the wire and file formats: only append.
enum class DType : std::uint8_t {
  f64,
  f32,
  f16,
  bf16,
  f8_e4m3,
  f8_e5m2,
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
  boolean
};

/// Bytes of one element.
std::size_t size_of(DType dtype) noexcept;
/// "f32", "bf16", "f8_e4m3", ...
std::string_view name_of(DType dtype) noexcept;
Result<DType> dtype_from_name(std::string_view name);
bool is_floating(DType dtype) noexcept;

/// Conversions on the host: to float they are exact for every narrow value; from float they round to nearest
/// even. NaN stays NaN (quiet); f8_e4m3 (the "fn" form: no infinity, 0x7f and 0xff are NaN) turns overflow
/// and Inf into NaN; f8_e5m2, f16 and bf16 turn overflow into Inf. Denormals are kept.
float f16_to_float(std::uint16_t bits) noexcept;
std::uint16_t float_to_f16(float value) noexcept;
float bf16_to_float(std::uint16_t bits) noexcept;
std::uint16_t float_to_bf16(float value) noexcept;
float f8_e4m3_to_float(std::uint8_t bits) noexcept;
std::uint8_t float_to_f8_e4m3(float value) noexcept;
float f8_e5m2_to_float(std::uint8_t bits) noexcept;
std::uint8_t float_to_f8_e5m2(float value) noexcept;

}  // namespace troupe::core
