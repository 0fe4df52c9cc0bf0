#include "gpu/collective/reduce.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/errors.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace troupe::gpu {
namespace {

// Elements per block: its accumulator stays in the first-level cache.
constexpr std::size_t kBlock = 1024;

template <ReduceOp op, class T>
T combine(T a, T b) {
  if constexpr (op == ReduceOp::min || op == ReduceOp::max) {
    const bool better = op == ReduceOp::min ? b < a : a < b;
    return better || b != b ? b : a;
  } else if constexpr (op == ReduceOp::bit_and) {
    return static_cast<T>(a & b);
  } else if constexpr (op == ReduceOp::bit_or) {
    return static_cast<T>(a | b);
  } else if constexpr (op == ReduceOp::bit_xor) {
    return static_cast<T>(a ^ b);
  } else if constexpr (std::is_integral_v<T>) {
    // Wide enough that no promotion to a signed type overflows.
    const auto x = static_cast<std::uint64_t>(a);
    const auto y = static_cast<std::uint64_t>(b);
    return static_cast<T>(op == ReduceOp::product ? x * y : x + y);
  } else {
    return op == ReduceOp::product ? a * b : a + b;
  }
}

template <ReduceOp op, class T>
void combine_block(const T* a, const T* b, T* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = combine<op>(a[i], b[i]);
}

template <class T>
void divide_block(T* values, std::size_t count, std::size_t divisor) {
  const T by = static_cast<T>(divisor);
  for (std::size_t i = 0; i < count; ++i) values[i] /= by;
}

/// For types that are their own accumulator: the last step writes the output, so two inputs need one pass.
template <ReduceOp op, class T>
void reduce_plain(std::span<const std::byte* const> inputs, std::byte* output, std::size_t elements) {
  std::array<T, kBlock> sum;
  const auto input = [&](std::size_t k) { return reinterpret_cast<const T*>(inputs[k]); };
  T* const out = reinterpret_cast<T*>(output);
  for (std::size_t begin = 0; begin < elements; begin += kBlock) {
    const std::size_t count = std::min(kBlock, elements - begin);
    const T* so_far = input(0) + begin;
    if (inputs.size() == 1 && so_far != out + begin) std::copy_n(so_far, count, out + begin);
    for (std::size_t k = 1; k < inputs.size(); ++k) {
      T* const to = k + 1 == inputs.size() ? out + begin : sum.data();
      combine_block<op>(so_far, input(k) + begin, to, count);
      so_far = to;
    }
    if constexpr (op == ReduceOp::average) divide_block(out + begin, count, inputs.size());
  }
}

struct Bf16 {
  static void widen(const std::uint16_t* from, float* to, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) to[i] = std::bit_cast<float>(std::uint32_t{from[i]} << 16);
  }
  static void narrow(const float* from, std::uint16_t* to, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(from[i]);
      const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
      const std::uint32_t quiet_nan = (bits >> 16) | 0x40;
      to[i] = static_cast<std::uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded);
    }
  }
};

#if defined(__x86_64__)
constexpr std::size_t kF16Lanes = 8;

__attribute__((target("f16c"))) void widen_f16_lanes(const std::uint16_t* from, float* to,
                                                     std::size_t count) {
  for (std::size_t i = 0; i < count; i += kF16Lanes) {
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
}

__attribute__((target("f16c"))) void narrow_f16_lanes(const float* from, std::uint16_t* to,
                                                      std::size_t count) {
  for (std::size_t i = 0; i < count; i += kF16Lanes) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
  }
}

std::size_t f16_lanes(std::size_t count) {
  return __builtin_cpu_supports("f16c") ? count / kF16Lanes * kF16Lanes : 0;
}
#else
void widen_f16_lanes(const std::uint16_t*, float*, std::size_t) {}
void narrow_f16_lanes(const float*, std::uint16_t*, std::size_t) {}
std::size_t f16_lanes(std::size_t) {
  return 0;
}
#endif

struct F16 {
  static void widen(const std::uint16_t* from, float* to, std::size_t count) {
    const std::size_t wide = f16_lanes(count);
    widen_f16_lanes(from, to, wide);
    for (std::size_t i = wide; i < count; ++i) to[i] = core::f16_to_float(from[i]);
  }
  static void narrow(const float* from, std::uint16_t* to, std::size_t count) {
    const std::size_t wide = f16_lanes(count);
    narrow_f16_lanes(from, to, wide);
    for (std::size_t i = wide; i < count; ++i) to[i] = core::float_to_f16(from[i]);
  }
};

template <ReduceOp op, class Narrow>
void reduce_widened(std::span<const std::byte* const> inputs, std::byte* output, std::size_t elements) {
  std::array<float, kBlock> sum;
  std::array<float, kBlock> next;
  for (std::size_t begin = 0; begin < elements; begin += kBlock) {
    const std::size_t count = std::min(kBlock, elements - begin);
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      const auto* from = reinterpret_cast<const std::uint16_t*>(inputs[k]) + begin;
      Narrow::widen(from, k == 0 ? sum.data() : next.data(), count);
      if (k > 0) combine_block<op>(sum.data(), next.data(), sum.data(), count);
    }
    if constexpr (op == ReduceOp::average) divide_block(sum.data(), count, inputs.size());
    Narrow::narrow(sum.data(), reinterpret_cast<std::uint16_t*>(output) + begin, count);
  }
}

template <ReduceOp op>
void reduce_floating(core::DType dtype, std::span<const std::byte* const> inputs, std::byte* output,
                     std::size_t elements) {
  switch (dtype) {
    case core::DType::f64:
      return reduce_plain<op, double>(inputs, output, elements);
    case core::DType::f32:
      return reduce_plain<op, float>(inputs, output, elements);
    case core::DType::f16:
      return reduce_widened<op, F16>(inputs, output, elements);
    case core::DType::bf16:
      return reduce_widened<op, Bf16>(inputs, output, elements);
    default:
      CHECK(false, "8-bit floating types are not reduced");
  }
}

template <ReduceOp op>
void reduce_integers(core::DType dtype, std::span<const std::byte* const> inputs, std::byte* output,
                     std::size_t elements) {
  switch (dtype) {
    case core::DType::i64:
      return reduce_plain<op, std::int64_t>(inputs, output, elements);
    case core::DType::i32:
      return reduce_plain<op, std::int32_t>(inputs, output, elements);
    case core::DType::i16:
      return reduce_plain<op, std::int16_t>(inputs, output, elements);
    case core::DType::i8:
      return reduce_plain<op, std::int8_t>(inputs, output, elements);
    case core::DType::u64:
      return reduce_plain<op, std::uint64_t>(inputs, output, elements);
    case core::DType::u32:
      return reduce_plain<op, std::uint32_t>(inputs, output, elements);
    case core::DType::u16:
      return reduce_plain<op, std::uint16_t>(inputs, output, elements);
    default:  // u8, and boolean, whose min and max are those of its bytes
      return reduce_plain<op, std::uint8_t>(inputs, output, elements);
  }
}

}  // namespace

void reduce_in_order(core::DType dtype, ReduceOp reduce, std::span<const std::byte* const> inputs,
                     std::byte* output, std::size_t elements) {
  CHECK(!inputs.empty(), "a reduction has at least one input");
  const bool floating = core::is_floating(dtype);
  const auto run = [&]<ReduceOp op>(std::integral_constant<ReduceOp, op>) {
    if constexpr (op == ReduceOp::bit_and || op == ReduceOp::bit_or || op == ReduceOp::bit_xor) {
      CHECK(!floating, "bit operations are for integers");
    } else {
      if (floating) return reduce_floating<op>(dtype, inputs, output, elements);
    }
    if constexpr (op != ReduceOp::average) reduce_integers<op>(dtype, inputs, output, elements);
  };
  switch (reduce) {
    case ReduceOp::sum:
      return run(std::integral_constant<ReduceOp, ReduceOp::sum>{});
    case ReduceOp::average:
      return run(std::integral_constant<ReduceOp, ReduceOp::average>{});
    case ReduceOp::min:
      return run(std::integral_constant<ReduceOp, ReduceOp::min>{});
    case ReduceOp::max:
      return run(std::integral_constant<ReduceOp, ReduceOp::max>{});
    case ReduceOp::product:
      return run(std::integral_constant<ReduceOp, ReduceOp::product>{});
    case ReduceOp::bit_and:
      return run(std::integral_constant<ReduceOp, ReduceOp::bit_and>{});
    case ReduceOp::bit_or:
      return run(std::integral_constant<ReduceOp, ReduceOp::bit_or>{});
    case ReduceOp::bit_xor:
      return run(std::integral_constant<ReduceOp, ReduceOp::bit_xor>{});
  }
}

}  // namespace troupe::gpu
