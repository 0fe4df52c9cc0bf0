#include "tests/gpu/collective/reference.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>

#include "core/errors.hpp"

namespace troupe::gpu {
namespace {

using core::DType;

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <class T>
void store(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

template <class T>
T product(T a, T b) {
  // Two numbers of 16 bits would be multiplied as signed ones.
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  return static_cast<T>(a * b);
}

template <class T>
T bitwise(ReduceOp reduce, T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    if (reduce == ReduceOp::bit_and) return static_cast<T>(a & b);
    return static_cast<T>(reduce == ReduceOp::bit_or ? a | b : a ^ b);
  }
  CHECK(false, "bit operations are for integers");
}

template <class T, class Wide>
void reduce_element(ReduceOp reduce, const std::vector<Bytes>& inputs, std::size_t i, std::byte* out,
                    const std::function<Wide(T)>& widen, const std::function<T(Wide)>& narrow) {
  Wide result = widen(load<T>(inputs[0].data() + i * sizeof(T)));
  for (std::size_t k = 1; k < inputs.size(); ++k) {
    const Wide next = widen(load<T>(inputs[k].data() + i * sizeof(T)));
    if (reduce == ReduceOp::min) {
      result = std::min(result, next);
    } else if (reduce == ReduceOp::max) {
      result = std::max(result, next);
    } else if (reduce == ReduceOp::product) {
      result = product(result, next);
    } else if (is_of_bits(reduce)) {
      result = bitwise(reduce, result, next);
    } else {
      result = static_cast<Wide>(result + next);
    }
  }
  if (reduce == ReduceOp::average) result = static_cast<Wide>(result / static_cast<Wide>(inputs.size()));
  store(out, narrow(result));
}

template <class T, class Wide>
Bytes reduce_all(ReduceOp reduce, const std::vector<Bytes>& inputs, std::function<Wide(T)> widen,
                 std::function<T(Wide)> narrow) {
  Bytes output(inputs[0].size());
  for (std::size_t i = 0; i < output.size() / sizeof(T); ++i) {
    reduce_element<T, Wide>(reduce, inputs, i, output.data() + i * sizeof(T), widen, narrow);
  }
  return output;
}

template <class T>
Bytes reduce_same(ReduceOp reduce, const std::vector<Bytes>& inputs) {
  const auto same = [](T value) { return value; };
  return reduce_all<T, T>(reduce, inputs, same, same);
}

}  // namespace

Bytes random_elements(DType dtype, std::size_t count, std::mt19937_64& random) {
  Bytes bytes(count * core::size_of(dtype));
  std::uniform_real_distribution<double> fraction(-2, 2);
  std::uniform_int_distribution<int> exponent(-12, 12);
  for (std::size_t i = 0; i < count; ++i) {
    std::byte* const at = bytes.data() + i * core::size_of(dtype);
    const double value = std::ldexp(fraction(random), exponent(random));
    switch (dtype) {
      case DType::f64:
        store(at, value);
        break;
      case DType::f32:
        store(at, static_cast<float>(value));
        break;
      case DType::f16:
        store(at, core::float_to_f16(static_cast<float>(value)));
        break;
      case DType::bf16:
        store(at, core::float_to_bf16(static_cast<float>(value)));
        break;
      case DType::boolean:
        store(at, static_cast<std::uint8_t>(random() % 2));
        break;
      default: {
        const std::uint64_t bits = random();
        std::memcpy(at, &bits, core::size_of(dtype));
      }
    }
  }
  return bytes;
}

Bytes reference_reduce(DType dtype, ReduceOp reduce, const std::vector<Bytes>& inputs) {
  const bool compares = reduce == ReduceOp::min || reduce == ReduceOp::max;
  switch (dtype) {
    case DType::f64:
      return reduce_same<double>(reduce, inputs);
    case DType::f32:
      return reduce_same<float>(reduce, inputs);
    case DType::f16:
      return reduce_all<std::uint16_t, float>(reduce, inputs, core::f16_to_float, core::float_to_f16);
    case DType::bf16:
      return reduce_all<std::uint16_t, float>(reduce, inputs, core::bf16_to_float, core::float_to_bf16);
    case DType::i64: {  // unsigned: wrapping is defined there
      if (!compares) return reduce_same<std::uint64_t>(reduce, inputs);
      return reduce_same<std::int64_t>(reduce, inputs);
    }
    case DType::i32: {
      if (!compares) return reduce_same<std::uint32_t>(reduce, inputs);
      return reduce_same<std::int32_t>(reduce, inputs);
    }
    case DType::i16:
      if (!compares) return reduce_same<std::uint16_t>(reduce, inputs);
      return reduce_same<std::int16_t>(reduce, inputs);
    case DType::i8:
      if (!compares) return reduce_same<std::uint8_t>(reduce, inputs);
      return reduce_same<std::int8_t>(reduce, inputs);
    case DType::u64:
      return reduce_same<std::uint64_t>(reduce, inputs);
    case DType::u32:
      return reduce_same<std::uint32_t>(reduce, inputs);
    case DType::u16:
      return reduce_same<std::uint16_t>(reduce, inputs);
    case DType::u8:
    case DType::boolean:
      return reduce_same<std::uint8_t>(reduce, inputs);
    default:
      CHECK(false, "8-bit floating types are not reduced");
  }
}

namespace {

double number_at(DType dtype, const Bytes& bytes, std::size_t i) {
  const std::byte* const at = bytes.data() + i * core::size_of(dtype);
  switch (dtype) {
    case DType::f64:
      return load<double>(at);
    case DType::f32:
      return load<float>(at);
    case DType::f16:
      return core::f16_to_float(load<std::uint16_t>(at));
    default:
      return core::bf16_to_float(load<std::uint16_t>(at));
  }
}

/// Half the distance of 1 to the next number, and of 0.
std::pair<double, double> roundings_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return {0x1p-53, 0x1p-1074};
    case DType::f32:
      return {0x1p-24, 0x1p-150};
    case DType::f16:
      return {0x1p-11, 0x1p-25};
    default:
      return {0x1p-8, 0x1p-134};
  }
}

}  // namespace

bool is_reduction_up_to_rounding(DType dtype, ReduceOp reduce, const std::vector<Bytes>& inputs,
                                 const Bytes& output) {
  const Bytes expected = reference_reduce(dtype, reduce, inputs);
  const bool is_exact = !core::is_floating(dtype) || reduce == ReduceOp::min || reduce == ReduceOp::max;
  if (is_exact || output.size() != expected.size()) return output == expected;
  const auto [relative, absolute] = roundings_of(dtype);
  const auto n = static_cast<double>(inputs.size());
  for (std::size_t i = 0; i < output.size() / core::size_of(dtype); ++i) {
    double magnitude = 0;
    for (const Bytes& input : inputs) magnitude += std::abs(number_at(dtype, input, i));
    if (reduce == ReduceOp::average) magnitude /= n;
    // n - 1 sums, the factor, its product and the reference's own rounding.
    const double bound = (n + 2) * (relative * magnitude * 1.01 + absolute);
    if (!(std::abs(number_at(dtype, output, i) - number_at(dtype, expected, i)) <= bound)) return false;
  }
  return true;
}

Bytes slice(const Bytes& bytes, std::size_t begin, std::size_t count) {
  CHECK(begin + count <= bytes.size(), "a slice lies inside its bytes");
  return {bytes.begin() + static_cast<std::ptrdiff_t>(begin),
          bytes.begin() + static_cast<std::ptrdiff_t>(begin + count)};
}

Bytes concatenate(const std::vector<Bytes>& parts) {
  Bytes all;
  for (const Bytes& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace troupe::gpu
