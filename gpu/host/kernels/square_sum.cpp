#include "gpu/host/kernels/square_sum.hpp"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

#include "core/exact_sum_parts.hpp"

// Values are added in blocks. Most values of a block are near each other in size, within a window of
// exponents: there a square is an integer multiple of the smallest one's last place, and all of them are
// added without rounding in registers. What is outside the window is seen from the smallest and the largest
// magnitude; such a block is gone through once per window that it needs.

namespace troupe::gpu {
namespace {

constexpr std::uint32_t kMagnitude = 0x7fff'ffff;
constexpr std::uint32_t kInfinite = 0x7f80'0000;
constexpr int kPlaces = 23;
constexpr int kLargestField = 254;
/// What engines take at a time; the rest of a block is filled up with zeros.
constexpr std::size_t kStride = 16;

/// What is added one by one at once, where values have many sizes.
constexpr std::size_t kScattered = std::size_t{1} << 14;

/// Magnitudes from `least`, up to but without `end`, which is infinite at most.
struct Window {
  int lowest = 1;  ///< exponent field of the smallest
  std::uint32_t least = 0;
  std::uint32_t end = 0;
};

struct Part {
  core::Wide squares = 0;  ///< in units of the square of the last place of the window's smallest values
  bool is_whole = false;   ///< no other value is there; asked for where nothing is masked
};

std::uint32_t field_floor(int field) {
  return static_cast<std::uint32_t>(field) << kPlaces;
}

/// In fp64, where squares are exact. Adding to a large number splits off a multiple of its last place, which
/// is added exactly; the remainders are added to a small sum.
struct InDoubles {
  static constexpr std::size_t kBlock = 1024;
  static constexpr int kFields = 23;
  static constexpr int kLowest = 1;
  static constexpr std::size_t kLanes = 4;
  static constexpr std::size_t kVectors = kStride / kLanes;
  /// 2^6 squares below 2^(2 * kFields + 2 * kPlaces) units are added to one of three quarters of its power of
  /// two, so that the power stays the same. The remainders are half of its last place, and 2^52 units in all.
  static constexpr int kSplit = 47;
  static_assert(kBlock / kStride == 1 << 6 && 2 * kFields + 2 * kPlaces + 6 == kSplit + 51);

  using Doubles [[gnu::vector_size(kLanes * 8)]] = double;
  using Floats [[gnu::vector_size(kLanes * 4)]] = float;
  using Words [[gnu::vector_size(kLanes * 4)]] = std::uint32_t;
  using Codes [[gnu::vector_size(kLanes * 2)]] = std::uint16_t;

  template <bool is_masked, class Value>
  [[gnu::always_inline]] static Part run(const Value* values, std::size_t count, Window window,
                                         std::size_t ahead) {
    const int unit = 2 * (window.lowest - 150);
    const double start = power_of_two(unit + kSplit + 52) * 1.5;
    Doubles high[kVectors];
    Doubles low[kVectors];
    Words least = ~Words{};
    Words most{};
    for (std::size_t v = 0; v < kVectors; ++v) {
      high[v] = Doubles{} + start;
      low[v] = Doubles{};
    }
    for (std::size_t i = 0; i < count; i += kStride) {
      prefetch(values + i, ahead);
#pragma GCC unroll 4
      for (std::size_t v = 0; v < kVectors; ++v) {
        Words magnitude = bits_at(values + i + v * kLanes) & kMagnitude;
        if constexpr (is_masked) {
          magnitude &= reinterpret_cast<Words>(magnitude >= window.least);
          magnitude &= reinterpret_cast<Words>(magnitude < window.end);
        } else {
          // Zeros are in every window: less one, they are the largest number.
          const Words less = magnitude - 1;
          least = less < least ? less : least;
          most = magnitude > most ? magnitude : most;
        }
        const Doubles wide = __builtin_convertvector(reinterpret_cast<Floats>(magnitude), Doubles);
        const Doubles square = wide * wide;
        const Doubles sum = high[v] + square;
        low[v] += square - (sum - high[v]);
        high[v] = sum;
      }
    }
    Part part{0, !is_masked};
    for (std::size_t lane = 0; lane < kLanes && !is_masked; ++lane)
      part.is_whole &= least[lane] >= window.least - 1 && most[lane] < window.end;
    if (!is_masked && !part.is_whole) return part;
    for (std::size_t v = 0; v < kVectors; ++v) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        const auto multiples =
            static_cast<std::int64_t>((high[v][lane] - start) * power_of_two(-unit - kSplit));
        const auto rest = static_cast<std::int64_t>(low[v][lane] * power_of_two(-unit));
        part.squares += (static_cast<core::Wide>(multiples) << kSplit) + static_cast<core::Wide>(rest);
      }
    }
    return part;
  }

  [[gnu::always_inline]] static Words bits_at(const float* values) {
    Words bits;
    std::memcpy(&bits, values, sizeof bits);
    return bits;
  }
  [[gnu::always_inline]] static Words bits_at(const std::uint16_t* codes) {
    Codes bits;
    std::memcpy(&bits, codes, sizeof bits);
    return __builtin_convertvector(bits, Words) << 16;
  }

  static double power_of_two(int exponent) {
    return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
  }
};

struct Plain : InDoubles {
  template <bool is_masked, class Value>
  static Part squares(const Value* values, std::size_t count, Window window, std::size_t ahead) {
    return run<is_masked, Value>(values, count, window, ahead);
  }
};

struct Avx2 : InDoubles {
  template <bool is_masked, class Value>
  [[gnu::target("avx2")]] static Part squares(const Value* values, std::size_t count, Window window,
                                              std::size_t ahead) {
    return run<is_masked, Value>(values, count, window, ahead);
  }
};

/// Computes with integers of 52 bits, whose products the processor adds in two halves.
struct Avx512 {
  static constexpr std::size_t kBlock = 4096;
  static constexpr int kFields = 29;
  static constexpr int kHalf = 52;
  static_assert(kFields + kPlaces == kHalf);
  /// The power of two that makes the window's values integers is a float.
  static constexpr int kLowest = 23;

  template <bool is_masked, class Value>
  [[gnu::target("avx512f,avx512dq,avx512ifma")]] static Part squares(const Value* values, std::size_t count,
                                                                     Window window, std::size_t ahead) {
    const auto scale = std::bit_cast<float>((277U - static_cast<std::uint32_t>(window.lowest)) << kPlaces);
    const __m512 factor = _mm512_set1_ps(scale);
    const __m512i bits = _mm512_set1_epi32(static_cast<int>(kMagnitude));
    const __m512i one = _mm512_set1_epi32(1);
    __m512i low[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    __m512i high[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    __m512i least = _mm512_set1_epi32(-1);
    __m512i most = _mm512_setzero_si512();
    for (std::size_t i = 0; i < count; i += kStride) {
      prefetch(values + i, ahead);
      __m512i magnitude = _mm512_and_si512(bits_at(values + i), bits);
      if constexpr (is_masked) {
        const __mmask16 is_large =
            _mm512_cmpge_epu32_mask(magnitude, _mm512_set1_epi32(static_cast<int>(window.least)));
        const __mmask16 is_inside = _mm512_mask_cmplt_epu32_mask(
            is_large, magnitude, _mm512_set1_epi32(static_cast<int>(window.end)));
        magnitude = _mm512_maskz_mov_epi32(is_inside, magnitude);
      } else {
        least = _mm512_min_epu32(least, _mm512_sub_epi32(magnitude, one));
        most = _mm512_max_epu32(most, magnitude);
      }
      const __m512 scaled = _mm512_mul_ps(_mm512_castsi512_ps(magnitude), factor);
      const __m512i integers[2] = {_mm512_cvtps_epi64(_mm512_castps512_ps256(scaled)),
                                   _mm512_cvtps_epi64(_mm512_extractf32x8_ps(scaled, 1))};
      for (int half = 0; half < 2; ++half) {
        low[half] = _mm512_madd52lo_epu64(low[half], integers[half], integers[half]);
        high[half] = _mm512_madd52hi_epu64(high[half], integers[half], integers[half]);
      }
    }
    Part part;
    // 2^12 numbers of 52 bits, so that neither sum wraps.
    static_assert(kBlock == 1 << (64 - kHalf));
    part.squares = static_cast<std::uint64_t>(_mm512_reduce_add_epi64(_mm512_add_epi64(high[0], high[1])));
    part.squares <<= kHalf;
    part.squares += static_cast<std::uint64_t>(_mm512_reduce_add_epi64(_mm512_add_epi64(low[0], low[1])));
    part.is_whole = !is_masked && _mm512_reduce_min_epu32(least) >= window.least - 1 &&
                    _mm512_reduce_max_epu32(most) < window.end;
    return part;
  }

 private:
  [[gnu::target("avx512f"), gnu::always_inline]] static __m512i bits_at(const float* values) {
    return _mm512_loadu_si512(values);
  }
  [[gnu::target("avx512f"), gnu::always_inline]] static __m512i bits_at(const std::uint16_t* codes) {
    const __m256i loaded = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(loaded), 16);
  }
};

struct Scan {
  std::uint32_t largest = 0;  ///< magnitude of those that are looked for
  std::int32_t nonfinite = 0;
};

struct ScanBelow {
  [[gnu::always_inline]] static Scan run(const float* values, std::size_t count, std::uint32_t end) {
    std::int32_t largest = 0;
    std::int32_t nonfinite = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const auto magnitude = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(values[i]) & kMagnitude);
      const std::int32_t seen = magnitude < static_cast<std::int32_t>(end) ? magnitude : 0;
      largest = seen > largest ? seen : largest;
      nonfinite += magnitude >= static_cast<std::int32_t>(kInfinite) ? 1 : 0;
    }
    return {static_cast<std::uint32_t>(largest), nonfinite};
  }
};

/// Copies the values below `end` and zeros in place of the others; returns how many are not zero.
struct CopyBelow {
  [[gnu::always_inline]] static std::int32_t run(const float* values, std::size_t count, std::uint32_t end,
                                                 float* below) {
    std::int32_t found = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const auto magnitude = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(values[i]) & kMagnitude);
      const std::int32_t seen = magnitude < static_cast<std::int32_t>(end) ? magnitude : 0;
      below[i] = std::bit_cast<float>(seen);
      found += seen != 0 ? 1 : 0;
    }
    return found;
  }
};

std::span<const float> as_floats(std::span<const float> values, std::span<float> /*memory*/) {
  return values;
}

std::span<const float> as_floats(std::span<const std::uint16_t> codes, std::span<float> memory) {
  for (std::size_t i = 0; i < codes.size(); ++i)
    memory[i] = std::bit_cast<float>(static_cast<std::uint32_t>(codes[i]) << 16);
  return memory.first(codes.size());
}

}  // namespace

template <class Engine, class Value>
void SquareAdder::add_block(std::span<const Value> block, bool is_cached) {
  if (!is_wide_) {
    const Window window{lowest_, field_floor(lowest_), field_floor(lowest_ + Engine::kFields)};
    const auto part =
        Engine::template squares<false>(block.data(), block.size(), window, is_cached ? 0 : kPrefetchBytes);
    if (part.is_whole) return core::add_squares_of_place(part.squares, lowest_, sum_);
  }
  std::array<float, Engine::kBlock> memory;
  add_by_windows<Engine>(as_floats(block, memory));
}

/// Two windows at most: values that are in neither are few, or from so many exponents that adding them one by
/// one takes less time.
template <class Engine>
void SquareAdder::add_by_windows(std::span<const float> block) {
  constexpr int kWindows = 2;
  std::uint32_t end = kInfinite;
  auto seen = run_best<ScanBelow>(block.data(), block.size(), end);
  sum_.nonfinite += seen.nonfinite;
  int windows = 0;
  for (; windows < kWindows; ++windows) {
    const int field = static_cast<int>(seen.largest >> kPlaces);
    if (seen.largest == 0 || field < Engine::kLowest) break;
    // Two fields more than needed, where values of the next blocks may be.
    constexpr int kHighest = kLargestField + 1 - Engine::kFields;
    const int lowest = std::clamp(field + 3 - Engine::kFields, Engine::kLowest, kHighest);
    if (windows == 0) lowest_ = lowest;
    const Window window{lowest, field_floor(lowest), end};
    const auto part = Engine::template squares<true>(block.data(), block.size(), window, 0);
    core::add_squares_of_place(part.squares, lowest, sum_);
    end = window.least;
    seen = run_best<ScanBelow>(block.data(), block.size(), end);
  }
  is_wide_ = windows > 1 || seen.largest > 0;
  if (seen.largest > 0) add_below(block, end);
}

void SquareAdder::add_below(std::span<const float> block, std::uint32_t end) {
  constexpr std::int32_t kFew = 64;
  std::array<float, std::max(Avx512::kBlock, InDoubles::kBlock)> rest;
  const auto found = run_best<CopyBelow>(block.data(), block.size(), end, rest.data());
  auto* past = rest.data() + block.size();
  // Compares integers: a processor may take denormals for zero.
  const auto is_zero = [](float value) { return std::bit_cast<std::uint32_t>(value) == 0; };
  is_scattered_ = static_cast<std::size_t>(found) > block.size() / 8;
  if (found <= kFew) past = std::remove_if(rest.data(), past, is_zero);
  sum_.accumulate({rest.data(), past});
}

template <class Engine, class Value>
void SquareAdder::add_blocks(std::span<const Value> values, bool is_cached) {
  while (values.size() >= kStride) {
    if (is_scattered_) {
      // For a while, until other values may have come.
      const auto some = values.first(std::min(values.size(), kScattered));
      std::array<float, sizeof(Value) == sizeof(float) ? 0 : kScattered> memory;
      sum_.accumulate(as_floats(some, memory));
      values = values.subspan(some.size());
      is_scattered_ = false;
      continue;
    }
    const auto block = values.first(std::min(values.size() / kStride * kStride, Engine::kBlock));
    add_block<Engine>(block, is_cached);
    values = values.subspan(block.size());
  }
  if (values.empty()) return;
  std::array<Value, kStride> last{};
  std::copy(values.begin(), values.end(), last.begin());
  add_block<Engine>(std::span<const Value>(last), true);
}

template <class Value>
void SquareAdder::add_values(std::span<const Value> values, bool is_cached) {
  switch (instructions_) {
    case InstructionSet::plain:
      return add_blocks<Plain>(values, is_cached);
    case InstructionSet::avx2:
      return add_blocks<Avx2>(values, is_cached);
    case InstructionSet::avx512:
      return add_blocks<Avx512>(values, is_cached);
  }
}

void SquareAdder::add(std::span<const float> values, bool is_cached) {
  add_values(values, is_cached);
}

void SquareAdder::add_bf16(std::span<const std::uint16_t> codes) {
  add_values(codes, false);
}

}  // namespace troupe::gpu
