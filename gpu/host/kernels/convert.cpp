#include "gpu/host/kernels/convert.hpp"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "core/errors.hpp"
#include "gpu/float_formats.hpp"
#include "gpu/host/kernels/arithmetic.hpp"

namespace troupe::gpu {
namespace {

// Two streams at least.
constexpr std::size_t kAhead = kPrefetchBytes / 2;

/// Runs convert(i) for all i, in groups that the compiler turns into vectors, and fetches ahead what the
/// arrays, of this many bytes per element, will need.
template <class Convert, class... Arrays>
[[gnu::always_inline]] inline void for_all(std::size_t count, Convert convert, const Arrays*... arrays) {
  constexpr std::size_t kGroup = 64;
  const auto fetch = [](const auto* array) __attribute__((always_inline)) {
    for (std::size_t byte = 0; byte < kGroup * sizeof(*array); byte += kGroup) prefetch(array, kAhead + byte);
  };
  std::size_t i = 0;
  for (; i + kGroup <= count; i += kGroup) {
    (fetch(arrays + i), ...);
#pragma GCC ivdep
    for (std::size_t k = 0; k < kGroup; ++k) convert(i + k);
  }
  for (; i < count; ++i) convert(i);
}

template <class Format>
[[gnu::always_inline]] inline void widen_all(const std::byte* source, float* destination, std::size_t count) {
  const auto* codes = reinterpret_cast<const typename Format::code_type*>(source);
  const auto widen = [=](std::size_t i) __attribute__((always_inline)) {
    destination[i] = std::bit_cast<float>(Format::widen(codes[i]));
  };
  for_all(count, widen, codes, destination);
}

template <class Format>
[[gnu::always_inline]] inline void narrow_all(const float* source, std::byte* destination,
                                              std::size_t count) {
  using Code = typename Format::code_type;
  auto* codes = reinterpret_cast<Code*>(destination);
  const auto narrow = [=](std::size_t i) __attribute__((always_inline)) {
    codes[i] = static_cast<Code>(Format::narrow(std::bit_cast<std::uint32_t>(source[i])));
  };
  for_all(count, narrow, source, codes);
}

template <class Format>
[[gnu::always_inline]] inline void add_all(const std::byte* a, const std::byte* b, float* sum,
                                           std::size_t count) {
  const auto* a_codes = reinterpret_cast<const typename Format::code_type*>(a);
  const auto* b_codes = reinterpret_cast<const typename Format::code_type*>(b);
  const auto add = [=](std::size_t i) __attribute__((always_inline)) {
    sum[i] =
        std::bit_cast<float>(Format::widen(a_codes[i])) + std::bit_cast<float>(Format::widen(b_codes[i]));
  };
  for_all(count, add, a_codes, b_codes);
}

template <class Format>
struct Plain {
  static void widen(const std::byte* source, float* destination, std::size_t count) {
    widen_all<Format>(source, destination, count);
  }
  static void narrow(const float* source, std::byte* destination, std::size_t count) {
    narrow_all<Format>(source, destination, count);
  }
  static void add(const std::byte* a, const std::byte* b, float* sum, std::size_t count) {
    add_all<Format>(a, b, sum, count);
  }
};

struct Same {
  static void widen(const std::byte* source, float* destination, std::size_t count) {
    std::copy_n(reinterpret_cast<const float*>(source), count, destination);
  }
  static void narrow(const float* source, std::byte* destination, std::size_t count) {
    std::copy_n(source, count, reinterpret_cast<float*>(destination));
  }
  static void add(const std::byte* a, const std::byte* b, float* sum, std::size_t count) {
    gpu::add(reinterpret_cast<const float*>(a), reinterpret_cast<const float*>(b), sum, count);
  }
};

/// The same loops, compiled for AVX2 and for AVX-512.
template <class Format>
struct Avx2 {
  [[gnu::target("avx2")]] static void widen(const std::byte* source, float* destination, std::size_t count) {
    widen_all<Format>(source, destination, count);
  }
  [[gnu::target("avx2")]] static void narrow(const float* source, std::byte* destination, std::size_t count) {
    narrow_all<Format>(source, destination, count);
  }
  [[gnu::target("avx2")]] static void add(const std::byte* a, const std::byte* b, float* sum,
                                          std::size_t count) {
    add_all<Format>(a, b, sum, count);
  }
};

template <class Format>
struct Avx512 {
  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")]] static void widen(
      const std::byte* source, float* destination, std::size_t count) {
    widen_all<Format>(source, destination, count);
  }
  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")]] static void narrow(
      const float* source, std::byte* destination, std::size_t count) {
    narrow_all<Format>(source, destination, count);
  }
  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")]] static void add(
      const std::byte* a, const std::byte* b, float* sum, std::size_t count) {
    add_all<Format>(a, b, sum, count);
  }
};

/// f16 has dedicated instructions.
struct F16c {
  static constexpr std::size_t kLanes = 8;
  static constexpr std::size_t kCodeBytes = kLanes * sizeof(std::uint16_t);

  [[gnu::target("avx,f16c")]] static void widen(const std::byte* source, float* destination,
                                                std::size_t count) {
    std::size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      prefetch(source + 2 * i, kAhead);
      prefetch(destination + i, kAhead);
      widen_lanes(source + 2 * i, destination + i);
    }
    if (i == count) return;
    std::array<std::byte, kCodeBytes> codes{};
    std::array<float, kLanes> values{};
    std::memcpy(codes.data(), source + 2 * i, 2 * (count - i));
    widen_lanes(codes.data(), values.data());
    std::copy_n(values.data(), count - i, destination + i);
  }

  [[gnu::target("avx,f16c")]] static void narrow(const float* source, std::byte* destination,
                                                 std::size_t count) {
    std::size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      prefetch(source + i, kAhead);
      prefetch(destination + 2 * i, kAhead);
      narrow_lanes(source + i, destination + 2 * i);
    }
    if (i == count) return;
    std::array<std::byte, kCodeBytes> codes{};
    std::array<float, kLanes> values{};
    std::copy_n(source + i, count - i, values.data());
    narrow_lanes(values.data(), codes.data());
    std::memcpy(destination + 2 * i, codes.data(), 2 * (count - i));
  }

  [[gnu::target("avx,f16c")]] static void add(const std::byte* a, const std::byte* b, float* sum,
                                              std::size_t count) {
    std::size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      _mm256_storeu_ps(sum + i, _mm256_add_ps(load_lanes(a + 2 * i), load_lanes(b + 2 * i)));
    }
    if (i == count) return;
    std::array<float, kLanes> more{};
    widen(a + 2 * i, sum + i, count - i);
    widen(b + 2 * i, more.data(), count - i);
    for (std::size_t k = 0; i + k < count; ++k) sum[i + k] += more[k];
  }

 private:
  [[gnu::target("avx,f16c")]] static __m256 load_lanes(const std::byte* source) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source)));
  }
  [[gnu::target("avx,f16c")]] static void widen_lanes(const std::byte* source, float* destination) {
    _mm256_storeu_ps(destination, load_lanes(source));
  }
  [[gnu::target("avx,f16c")]] static void narrow_lanes(const float* source, std::byte* destination) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(destination),
                     _mm256_cvtps_ph(_mm256_loadu_ps(source), _MM_FROUND_TO_NEAREST_INT));
  }
};

template <class Functions>
Converter converter() {
  return {Functions::widen, Functions::narrow, Functions::add};
}

template <class Wide, class Vector, class Scalar>
Converter converter(InstructionSet instructions) {
  switch (instructions) {
    case InstructionSet::avx512:
      return converter<Wide>();
    case InstructionSet::avx2:
      return converter<Vector>();
    default:
      return converter<Scalar>();
  }
}

template <class Format>
Converter of_format(InstructionSet instructions) {
  return converter<Avx512<Format>, Avx2<Format>, Plain<Format>>(instructions);
}

}  // namespace

Converter converter_of(core::DType dtype, InstructionSet instructions) {
  switch (dtype) {
    case core::DType::f32:
      return converter<Same>();
    case core::DType::f16:
      return converter<F16c, F16c, Plain<formats::F16>>(instructions);
    case core::DType::bf16:
      return of_format<formats::Bf16>(instructions);
    case core::DType::f8_e4m3:
      return of_format<formats::E4m3>(instructions);
    case core::DType::f8_e5m2:
      return of_format<formats::E5m2>(instructions);
    default:
      CHECK(false, "kernels take floating elements of at most 32 bits");
  }
}

Converter converter_of(core::DType dtype) {
  return converter_of(dtype, best_instruction_set());
}

}  // namespace troupe::gpu
