#include "core/convert.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/errors.hpp"

namespace troupe::core {

namespace {

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

double element(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::f64:
      return load<double>(at);
    case DType::f32:
      return load<float>(at);
    case DType::f16:
      return f16_to_float(load<std::uint16_t>(at));
    case DType::bf16:
      return bf16_to_float(load<std::uint16_t>(at));
    case DType::f8_e4m3:
      return f8_e4m3_to_float(load<std::uint8_t>(at));
    case DType::f8_e5m2:
      return f8_e5m2_to_float(load<std::uint8_t>(at));
    default:
      CHECK(false, "only floating elements are converted");
  }
}

void put(DType dtype, double value, std::byte* at) {
  const auto store = [at](auto bits) { std::memcpy(at, &bits, sizeof bits); };
  const auto narrow = static_cast<float>(value);
  switch (dtype) {
    case DType::f64:
      return store(value);
    case DType::f32:
      return store(narrow);
    case DType::f16:
      return store(float_to_f16(narrow));
    case DType::bf16:
      return store(float_to_bf16(narrow));
    case DType::f8_e4m3:
      return store(float_to_f8_e4m3(narrow));
    case DType::f8_e5m2:
      return store(float_to_f8_e5m2(narrow));
    default:
      CHECK(false, "only floating elements are converted");
  }
}

}  // namespace

Result<void> check_convertible(DType from, DType to) {
  if (from == to || (is_floating(from) && is_floating(to))) return {};
  return fail(Errc::mismatch, "{} is stored, {} is wanted, and only floating types are converted",
              name_of(from), name_of(to));
}

void convert_elements(DType from, const std::byte* source, DType to, std::byte* target, std::size_t count) {
  if (from == to) {
    std::copy_n(source, count * size_of(from), target);  // without elements there may be no memory
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    put(to, element(from, source + i * size_of(from)), target + i * size_of(to));
  }
}

}  // namespace troupe::core
