#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace troupe::apps::gpt {

template <class Loop>
[[gnu::target("avx2")]] inline void run_with_avx2(Loop loop) {
  loop();
}

/// Runs a loop that the compiler vectorises, in groups of eight if the machine has AVX2. The loop is a lambda
/// declared always_inline, so that both forms are compiled from it; multiplications and additions are never
/// fused, so both give the same bits.
template <class Loop>
inline void vectorised(Loop loop) {
  if (__builtin_cpu_supports("avx2")) return run_with_avx2(loop);
  loop();
}

/// Sum of term(i) for i in [0, count). The order is fixed here, sixteen interleaved partial sums and a tree
/// over them, so that the compiler can vectorise it and the bits do not depend on the instruction set.
template <class T, class Term>
inline T ordered_sum(std::size_t count, Term term) {
  constexpr std::size_t kWays = 16;
  T partial[kWays] = {};
  std::size_t i = 0;
  for (; i + kWays <= count; i += kWays) {
    for (std::size_t way = 0; way < kWays; ++way) partial[way] += term(i + way);
  }
  for (std::size_t way = 0; i < count; ++i, ++way) partial[way] += term(i);
  for (std::size_t half = kWays / 2; half > 0; half /= 2) {
    for (std::size_t way = 0; way < half; ++way) partial[way] += partial[way + half];
  }
  return partial[0];
}

/// The largest of values[0, count), count >= 1; unspecified if one of them is NaN.
template <class T>
inline T largest(std::size_t count, const T* values) {
  constexpr std::size_t kWays = 16;
  T best[kWays];
  for (T& way : best) way = values[0];
  std::size_t i = 0;
  for (; i + kWays <= count; i += kWays) {
    for (std::size_t way = 0; way < kWays; ++way) {
      best[way] = values[i + way] > best[way] ? values[i + way] : best[way];
    }
  }
  for (; i < count; ++i) best[0] = values[i] > best[0] ? values[i] : best[0];
  T most = best[0];
  for (const T way : best) most = way > most ? way : most;
  return most;
}

/// e^x without a branch, so that loops over it vectorise; within 2 units in the last place of the true value
/// for x in [-87, 88], and clamped to that range outside it. Polynomial: Cephes' expf.
inline float exponential(float x) {
  constexpr float kRounder = 12582912.0F;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  x = x < -87.0F ? -87.0F : x;
  x = x > 88.0F ? 88.0F : x;
  const float rounded = x * 1.44269504F + kRounder;
  const float power = rounded - kRounder;
  const float rest = (x - power * 0.693359375F) - power * -2.12194440e-4F;
  float sum = 1.9875691500e-4F;
  sum = sum * rest + 1.3981999507e-3F;
  sum = sum * rest + 8.3334519073e-3F;
  sum = sum * rest + 4.1665795894e-2F;
  sum = sum * rest + 1.6666665459e-1F;
  sum = sum * rest + 5.0000001201e-1F;
  sum = sum * rest * rest + rest + 1.0F;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(sum) +
                              (std::bit_cast<std::uint32_t>(rounded) << 23));
}

inline double exponential(double x) {
  return std::exp(x);
}

template <class T>
inline T sigmoid(T x) {
  return T{1} / (T{1} + exponential(-x));
}

}  // namespace troupe::apps::gpt
