#include <cmath>

#include "core/exact_sum.hpp"
#include "gpu/cuda/kernels/packs.cuh"

namespace troupe::gpu {
namespace {

constexpr int kThreads = 128;
constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffff'ffffU;
constexpr int kLimbs = core::ExactSquareSum::kLimbs;
constexpr int kWords = kLimbs + 1;  // the last counts non-finite values
/// Each value adds less than 2^33 to a limb, so this many may be added to limbs that are as large as 2^62.
constexpr std::size_t kValuesBetweenCarries = std::size_t{1} << 28;

using Word = unsigned long long;  // accepted by atomicAdd(); signed sums wrap to the same bits

__extension__ using Wide = unsigned __int128;

/// value << places or value >> places; zero for more places than there are bits, and for less than none.
__device__ __forceinline__ std::uint32_t shifted_left(std::uint32_t value, unsigned places) {
#ifdef __CUDA_ARCH__
  asm("shl.b32 %0, %0, %1;" : "+r"(value) : "r"(places));
  return value;
#else
  return places < 32 ? value << places : 0;
#endif
}
__device__ __forceinline__ std::uint32_t shifted_right(std::uint32_t value, unsigned places) {
#ifdef __CUDA_ARCH__
  asm("shr.u32 %0, %0, %1;" : "+r"(value) : "r"(places));
  return value;
#else
  return places < 32 ? value >> places : 0;
#endif
}

__device__ __forceinline__ int field_of(std::uint32_t magnitude) {
  return static_cast<int>(magnitude >> 23);
}

/// Sums of squares whose exponents are near each other, in integers: the lower half of the exponents, in
/// units of the square of the lowest last place, and the upper half, whose last places are 2^kHalf as large.
struct IntegerWindow {
  static constexpr unsigned kHalf = 8;  ///< 24 bits of a mantissa and 7 places fit into a word
  static constexpr int kExponents = 2 * kHalf;

  Wide lower = 0, upper = 0;

  /// Each value is in one half, and zero in the other. Zeros may be among them.
  template <int n>
  __device__ __forceinline__ void add(const std::uint32_t (&magnitude)[n], int lowest) {
    static_assert(n <= 4, "the sum of more squares may not fit");
    Word of_lower = 0, of_upper = 0;
    for (int i = 0; i < n; ++i) {
      const unsigned above = (magnitude[i] >> 23) - static_cast<unsigned>(lowest);
      const std::uint32_t hidden = magnitude[i] < 0x80'0000U ? magnitude[i] : 0x80'0000U;
      const std::uint32_t mantissa = (magnitude[i] & 0x7f'ffffU) | (hidden & 0x80'0000U);
      const Word low = shifted_right(mantissa << (kHalf - 1), kHalf - 1 - above);
      const Word high = shifted_left(mantissa, above - kHalf);
      of_lower += low * low;
      of_upper += high * high;
    }
    lower += of_lower;
    upper += of_upper;
  }

  __device__ __forceinline__ void prepare(int) {}
  /// Calls give(sum, exponent field of the floats whose last place, squared, is the sum's unit).
  template <class Give>
  __device__ __forceinline__ void close(int lowest, Give give) {
    give(lower, lowest);
    give(upper, lowest + static_cast<int>(kHalf));
    lower = upper = 0;
  }
};

/// 2^exponent, which is a normal number.
__device__ __forceinline__ double power_of_two(int exponent) {
  return __builtin_bit_cast(double, static_cast<Word>(1023 + exponent) << 52);
}

/// The same in doubles, of which a square of a float fits into one. Added to a number that is large enough,
/// it is rounded to a multiple of 2^(2 kCut) units; what that leaves, added to another one, to a multiple of
/// 2^kCut, and the rest is added apart. All three sums are exact for kMost squares, with which they stay
/// within a factor of two, and below 2^53. Each square is less than 2^(48 + 2 kExponents) units, so that
/// `sum` has room for all that one thread may get.
struct DoubleWindow {
  static constexpr int kExponents =
      29;  ///< many, since each thread meets tensors whose values differ in size
  static constexpr int kCut = 44;
  static constexpr int kMost = 128;
  static_assert(48 + 2 * kExponents - 2 * kCut + 7 < 51 && kCut - 1 + 7 < 51);
  static_assert(48 + 2 * kExponents < 128 - 21 && kValuesBetweenCarries / kThreads == 1U << 21);

  double upper_bias = 0, middle_bias = 0;  ///< 1.5 * 2^52 times 2^(2 kCut) and 2^kCut units
  double upper = 0, middle = 0, lower = 0;
  Wide sum = 0;  ///< of earlier squares, in units
  int adds = 0;

  __device__ __forceinline__ DoubleWindow() { prepare(1); }

  __device__ __forceinline__ static int unit(int lowest) { return 2 * (lowest - 150); }

  /// After close().
  __device__ __forceinline__ void prepare(int lowest) {
    upper = upper_bias = 1.5 * power_of_two(52 + 2 * kCut + unit(lowest));
    middle = middle_bias = 1.5 * power_of_two(52 + kCut + unit(lowest));
  }

  /// Zeros may be among them.
  template <int n>
  __device__ __forceinline__ void add(const std::uint32_t (&magnitude)[n], int lowest) {
    for (int i = 0; i < n; ++i) {
      const double value = formats::float_of(magnitude[i]);
      const double upper_before = upper, middle_before = middle;
      upper = fma(value, value, upper);
      const double rest = fma(value, value, upper_before - upper);
      middle += rest;
      lower += rest + (middle_before - middle);
    }
    if (++adds == kMost / kPackElements) gather(lowest);
  }

  __device__ __forceinline__ void gather(int lowest) {
    const double to_units = power_of_two(-unit(lowest)), to_cuts = to_units * power_of_two(-kCut);
    sum += static_cast<Wide>(static_cast<long long>(lower * to_units));
    sum += static_cast<Wide>(static_cast<long long>((middle - middle_bias) * to_cuts)) << kCut;
    const double of_upper = (upper - upper_bias) * to_cuts * power_of_two(-kCut);
    sum += static_cast<Wide>(static_cast<long long>(of_upper)) << (2 * kCut);
    upper = upper_bias;
    middle = middle_bias;
    lower = 0;
    adds = 0;
  }

  template <class Give>
  __device__ __forceinline__ void close(int lowest, Give give) {
    gather(lowest);
    give(sum, lowest);
    sum = 0;
  }
};

__device__ __forceinline__ void add(Word* own, int word, Word value) {
  own[word * kThreads] += value;
}

/// These two are seldom needed: one copy of each leaves loops that a multiprocessor's cache of instructions
/// has room for.
__device__ __noinline__ void add_at(Word* own, int position, Wide sum) {
  for (int word = 0; word < 4; ++word) {
    const Word part = (static_cast<Word>(sum >> (32 * word)) & 0xffff'ffffU) << (position % 32);
    add(own, position / 32 + word, part & 0xffff'ffffU);
    add(own, position / 32 + word + 1, part >> 32);
  }
}

__device__ __noinline__ void add_to_words(Word* own, std::uint32_t magnitude) {
  if (magnitude == 0) return;
  const int field = field_of(magnitude);
  if (field == 255) return add(own, kLimbs, 1);
  const Word mantissa = (magnitude & 0x7f'ffffU) | (field != 0 ? 0x80'0000U : 0U);
  const Word square = mantissa * mantissa;
  // Denormals (field 0) have the exponent of field 1, without the hidden bit.
  const int position = 2 * (field > 0 ? field - 1 : 0);
  const int limb = position / 32;
  const Word low = (square & 0xffff'ffffU) << (position % 32);
  const Word high = (square >> 32) << (position % 32);
  add(own, limb, low & 0xffff'ffffU);
  add(own, limb + 1, (low >> 32) + (high & 0xffff'ffffU));
  add(own, limb + 2, high >> 32);
}

/// Adds squares exactly, so their order does not matter and the sum has the host's bits (core/exact_sum.cpp).
/// Most squares of a thread are near each other in size: those of a window of exponents are added in
/// registers, and the sums go to the thread's own column of words when larger or much smaller values come.
/// Other values go there at once.
template <class Window>
struct AddSquares {
  static constexpr int kWindow = Window::kExponents;
  static constexpr int kBelow =
      kWindow - 4;  ///< exponents of the window below the largest value that opened it

  DeviceArray values;
  Word* own;
  int lowest = 1;  ///< exponent field of the window's smallest values
  Window window;

  __device__ __forceinline__ AddSquares(DeviceArray of, Word* words) : values(of), own(words) {}

  template <int n>
  __device__ __forceinline__ Fetched<n> fetch(std::size_t first) const {
    return fetched<n>(values, first);
  }

  template <int n>
  __device__ __forceinline__ void finish(std::size_t, const Fetched<n>& fetched_pack) {
    const auto pack = widened(values.format, fetched_pack);
    std::uint32_t magnitude[n];
    std::uint32_t largest = 0, smallest = 0xffff'ffffU;
    for (int i = 0; i < n; ++i) {
      magnitude[i] = formats::bits_of(pack.value[i]) & 0x7fff'ffffU;
      if (magnitude[i] > largest) largest = magnitude[i];
      if (magnitude[i] < smallest) smallest = magnitude[i];
    }
    if (!is_in_window(smallest) || !is_in_window(largest)) take_others_out(magnitude, largest);
    window.add(magnitude, lowest);
  }

  /// Adds the window's sums to the words.
  __device__ __forceinline__ void close_window() {
    window.close(lowest, [this](Wide sum, int field) { add_at(own, 2 * (field - 1), sum); });
  }

 private:
  /// Values outside of the window, which some of these are, are zeros afterwards.
  template <int n>
  __device__ __forceinline__ void take_others_out(std::uint32_t (&magnitude)[n], std::uint32_t largest) {
    if (largest == 0) return;
    open_window(field_of(largest));
    for (int i = 0; i < n; ++i) {
      if (is_in_window(magnitude[i])) continue;
      add_to_words(own, magnitude[i]);
      magnitude[i] = 0;
    }
  }
  __device__ __forceinline__ bool is_in_window(std::uint32_t magnitude) const {
    return static_cast<unsigned>(field_of(magnitude) - lowest) < kWindow;
  }

  /// For values of which the largest has this exponent field. Neither denormals nor what is not finite is
  /// ever in a window.
  __device__ __forceinline__ void open_window(int field) {
    if (static_cast<unsigned>(field - lowest - 4) < kWindow - 4) return;
    int wanted = field > kBelow ? field - kBelow : 1;
    if (wanted > 255 - kWindow) wanted = 255 - kWindow;
    if (wanted == lowest) return;
    close_window();
    lowest = wanted;
    window.prepare(lowest);
  }
};

template <class Window, bool kIsF32>
__global__ void add_squares(Shape shape, DeviceArray values, std::int64_t* sum) {
  if (kIsF32) values.format = formats::Format::f32;  // so that nothing asks for it any more
  __shared__ Word words[kWords * kThreads];
  for (int word = 0; word < kWords; ++word) words[word * kThreads + static_cast<int>(threadIdx.x)] = 0;
  AddSquares<Window> body(values, words + threadIdx.x);
  for_each_pack(shape, body);
  body.close_window();
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int word = static_cast<int>(threadIdx.x) / kWarp; word < kWords; word += kThreads / kWarp) {
    Word total = 0;
    for (int column = lane; column < kThreads; column += kWarp) total += words[word * kThreads + column];
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      total += __shfl_xor_sync(kAllLanes, total, distance);
    }
    if (lane == 0 && total != 0) atomicAdd(reinterpret_cast<Word*>(sum) + word, total);
  }
}

/// Reduces every limb except the last to less than 2^32.
__global__ void carry(std::int64_t* sum) {
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  for (int i = 0; i + 1 < kLimbs; ++i) {
    sum[i + 1] += sum[i] >> 32;
    sum[i] &= 0xffff'ffff;
  }
}

__global__ void add_square_sums(const std::int64_t* parts, std::size_t part_count, std::int64_t* into) {
  const auto word = static_cast<int>(threadIdx.x);
  if (blockIdx.x != 0 || word >= kWords) return;
  std::int64_t sum = into[word];
  for (std::size_t part = 0; part < part_count; ++part) sum += parts[part * kWords + word];
  into[word] = sum;
}

struct Largest {
  DeviceArray values;
  std::uint32_t found;

  template <int n>
  __device__ __forceinline__ Fetched<n> fetch(std::size_t first) const {
    return fetched<n>(values, first);
  }
  template <int n>
  __device__ __forceinline__ void finish(std::size_t, const Fetched<n>& fetched_pack) {
    const auto pack = widened(values.format, fetched_pack);
    for (int i = 0; i < n; ++i) {
      const std::uint32_t magnitude = formats::bits_of(pack.value[i]) & 0x7fff'ffffU;
      if (magnitude > found) found = magnitude;
    }
  }
};

__global__ void raise_to_largest(Shape shape, DeviceArray values, std::uint32_t* largest) {
  Largest body{values, 0};
  for_each_pack(shape, body);
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const std::uint32_t other = __shfl_xor_sync(kAllLanes, body.found, distance);
    if (other > body.found) body.found = other;
  }
  if (threadIdx.x % kWarp == 0) atomicMax(largest, body.found);
}

}  // namespace

cudaError_t launch_add_squares(DeviceArray values, std::size_t count, std::int64_t* sum,
                               const LaunchTarget& target) {
  cudaError_t status = cudaSuccess;
  const std::size_t size = element_bytes(values.format);
  const bool is_f32 = values.format == formats::Format::f32;
  const auto in_doubles = is_f32 ? add_squares<DoubleWindow, true> : add_squares<DoubleWindow, false>;
  const auto in_integers = is_f32 ? add_squares<IntegerWindow, true> : add_squares<IntegerWindow, false>;
  const auto kernel = target.has_fast_doubles ? in_doubles : in_integers;
  for (std::size_t first = 0; first < count && status == cudaSuccess; first += kValuesBetweenCarries) {
    const DeviceArray part{static_cast<char*>(values.data) + first * size, values.format};
    const Shape shape = shape_of(std::min(kValuesBetweenCarries, count - first), {part});
    status = launch<Shape, DeviceArray, std::int64_t*>(kernel, target, std::max(shape.packs, shape.singles()),
                                                       1, kThreads, 0, shape, part, sum);
    if (status == cudaSuccess) status = launch<std::int64_t*>(carry, target, 1, 1, 1, 0, sum);
  }
  return status;
}

cudaError_t launch_add_square_sums(const std::int64_t* parts, std::size_t part_count, std::int64_t* into,
                                   const LaunchTarget& target) {
  return launch<const std::int64_t*, std::size_t, std::int64_t*>(add_square_sums, target, kWarp, 1, kWarp, 0,
                                                                 parts, part_count, into);
}

cudaError_t launch_raise_to_largest(DeviceArray values, std::size_t count, std::uint32_t* largest,
                                    const LaunchTarget& target) {
  if (count == 0) return cudaSuccess;
  const Shape shape = shape_of(count, {values});
  return launch<Shape, DeviceArray, std::uint32_t*>(raise_to_largest, target,
                                                    std::max(shape.packs, shape.singles()), 1, kThreads, 0,
                                                    shape, values, largest);
}

}  // namespace troupe::gpu
