#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>

#include "gpu/cuda/kernels/launch.hpp"
#include "gpu/float_formats.hpp"

namespace troupe::gpu {

/// Kernels process arrays in packs of this many elements, one access for each array, so that the lanes of a
/// warp touch memory without gaps whatever the formats; and element by element where the arrays do not begin
/// or end with a whole pack.
inline constexpr int kPackElements = 4;

/// How `count` elements are cut: [0, head), then packs, then the rest.
struct Shape {
  std::size_t count = 0;
  std::size_t head = 0;
  std::size_t packs = 0;

  __host__ __device__ std::size_t singles() const { return count - packs * kPackElements; }
};

__host__ __device__ inline std::size_t element_bytes(formats::Format format) {
  switch (format) {
    case formats::Format::f32:
      return 4;
    case formats::Format::f16:
    case formats::Format::bf16:
      return 2;
    default:
      return 1;
  }
}

/// Whether a pack may begin at the element.
__host__ __device__ inline bool is_aligned(const DeviceArray& array, std::size_t element) {
  const std::size_t size = element_bytes(array.format);
  const std::size_t pack = size * kPackElements;
  return (reinterpret_cast<std::uintptr_t>(array.data) + element * size) % (pack < 16 ? pack : 16) == 0;
}

/// Packs begin where all arrays are aligned for them; if there is no such place, there are no packs.
template <int arrays>
__host__ __device__ inline Shape shape_of(std::size_t count, const DeviceArray (&array)[arrays]) {
  for (std::size_t head = 0; head < kPackElements && head + kPackElements <= count; ++head) {
    bool fits = true;
    for (int i = 0; i < arrays; ++i) fits = fits && is_aligned(array[i], head);
    if (fits) return {count, head, (count - head) / kPackElements};
  }
  return {count, 0, 0};
}

template <int n>
struct Floats {
  float value[n];
};

template <class Code, int n>
struct alignas(sizeof(Code) * n < 16 ? sizeof(Code) * n : 16) Codes {
  Code code[n];
};

/// Elements as they lie in memory, not yet widened. Reading them waits for nothing.
template <int n>
struct Fetched {
  static_assert(n == 1 || n == kPackElements);
  std::uint32_t word[n];
};

template <int n, class Code>
__device__ __forceinline__ Fetched<n> fetch_as(const void* data, std::size_t first) {
  using Pack = Codes<Code, n>;
  const auto* place = static_cast<const Code*>(data) + first;
  assert(reinterpret_cast<std::uintptr_t>(place) % alignof(Pack) == 0);
  Fetched<n> pack = {};
  if constexpr (n == 1) {
    pack.word[0] = *place;
  } else {
    constexpr int words = static_cast<int>(sizeof(Pack) / sizeof(std::uint32_t));
    const auto codes = *reinterpret_cast<const Codes<std::uint32_t, words>*>(place);
    for (int i = 0; i < words; ++i) pack.word[i] = codes.code[i];
  }
  return pack;
}

/// The format is the same for all threads, so the branch costs little compared with memory access, and no
/// kernel is needed for every pair of formats. A missing array has zeros.
template <int n>
__device__ __forceinline__ Fetched<n> fetched(const DeviceArray& array, std::size_t first) {
  if (array.data == nullptr) return {};
  switch (element_bytes(array.format)) {
    case 4:
      return fetch_as<n, std::uint32_t>(array.data, first);
    case 2:
      return fetch_as<n, std::uint16_t>(array.data, first);
    default:
      return fetch_as<n, std::uint8_t>(array.data, first);
  }
}

template <class FormatOf, int n>
__device__ __forceinline__ Floats<n> widened_as(const Fetched<n>& pack) {
  using Code = typename FormatOf::code_type;
  constexpr int per_word = static_cast<int>(sizeof(std::uint32_t) / sizeof(Code));
  Floats<n> values;
  for (int i = 0; i < n; ++i) {
    const auto code = static_cast<Code>(pack.word[i / per_word] >> (i % per_word * 8 * sizeof(Code)));
    values.value[i] = formats::float_of(FormatOf::widen(code));
  }
  return values;
}

/// In fp32.
template <int n>
__device__ __forceinline__ Floats<n> widened(formats::Format format, const Fetched<n>& pack) {
  switch (format) {
    case formats::Format::f32:
      return widened_as<formats::F32>(pack);
    case formats::Format::f16:
      return widened_as<formats::F16>(pack);
    case formats::Format::bf16:
      return widened_as<formats::Bf16>(pack);
    case formats::Format::f8_e4m3:
      return widened_as<formats::E4m3>(pack);
    default:
      return widened_as<formats::E5m2>(pack);
  }
}

template <class FormatOf, int n>
__device__ __forceinline__ void store_as(void* data, std::size_t first, const Floats<n>& values) {
  using Code = typename FormatOf::code_type;
  using Pack = Codes<Code, n>;
  auto* place = static_cast<Code*>(data) + first;
  assert(reinterpret_cast<std::uintptr_t>(place) % alignof(Pack) == 0);
  Pack codes;
  for (int i = 0; i < n; ++i) {
    codes.code[i] = static_cast<Code>(FormatOf::narrow(formats::bits_of(values.value[i])));
  }
  *reinterpret_cast<Pack*>(place) = codes;
}

/// Elements [first, first + n) in fp32.
template <int n>
__device__ __forceinline__ Floats<n> load(const DeviceArray& array, std::size_t first) {
  return widened(array.format, fetched<n>(array, first));
}

template <int n>
__device__ __forceinline__ void store(const DeviceArray& array, std::size_t first, const Floats<n>& values) {
  switch (array.format) {
    case formats::Format::f32:
      return store_as<formats::F32, n>(array.data, first, values);
    case formats::Format::f16:
      return store_as<formats::F16, n>(array.data, first, values);
    case formats::Format::bf16:
      return store_as<formats::Bf16, n>(array.data, first, values);
    case formats::Format::f8_e4m3:
      return store_as<formats::E4m3, n>(array.data, first, values);
    default:
      return store_as<formats::E5m2, n>(array.data, first, values);
  }
}

template <class FormatOf, int n>
__device__ __forceinline__ Floats<n> rounded_as(Floats<n> values) {
  for (int i = 0; i < n; ++i) {
    const auto code =
        static_cast<typename FormatOf::code_type>(FormatOf::narrow(formats::bits_of(values.value[i])));
    values.value[i] = formats::float_of(FormatOf::widen(code));
  }
  return values;
}

/// The values after being stored in a format and read back.
template <int n>
__device__ __forceinline__ Floats<n> rounded(formats::Format format, const Floats<n>& values) {
  switch (format) {
    case formats::Format::f32:
      return values;
    case formats::Format::f16:
      return rounded_as<formats::F16, n>(values);
    case formats::Format::bf16:
      return rounded_as<formats::Bf16, n>(values);
    case formats::Format::f8_e4m3:
      return rounded_as<formats::E4m3, n>(values);
    default:
      return rounded_as<formats::E5m2, n>(values);
  }
}

/// A thread's share of an array: packs [first, end) by `stride`, then single elements.
struct Share {
  std::size_t first, end, stride;
};

/// Calls body.finish(first, body.fetch<n>(first)) for the packs of a share. A body fetches what it reads; two
/// packs are under way at a time.
template <class Body>
__device__ __forceinline__ void for_packs(const Shape& shape, const Share& share, Body& body) {
  std::size_t pack = share.first;
  for (; pack + share.stride < share.end; pack += 2 * share.stride) {
    const std::size_t one = shape.head + pack * kPackElements, other = one + share.stride * kPackElements;
    const auto of_one = body.template fetch<kPackElements>(one);
    const auto of_other = body.template fetch<kPackElements>(other);
    body.finish(one, of_one);
    body.finish(other, of_other);
  }
  if (pack < share.end) {
    const std::size_t last = shape.head + pack * kPackElements;
    body.finish(last, body.template fetch<kPackElements>(last));
  }
}

template <class Body>
__device__ __forceinline__ void for_singles(const Shape& shape, const Share& all, Body& body) {
  for (std::size_t single = all.first; single < shape.singles(); single += all.stride) {
    const std::size_t at = single < shape.head ? single : single + shape.packs * kPackElements;
    body.finish(at, body.template fetch<1>(at));
  }
}

/// This thread among all of the grid.
__device__ __forceinline__ Share share_of_grid(const Shape& shape) {
  return {static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x, shape.packs,
          static_cast<std::size_t>(gridDim.x) * blockDim.x};
}

/// Calls the body for this thread's share of the elements, with packs and then with single ones.
template <class Body>
__device__ __forceinline__ void for_each_pack(const Shape& shape, Body& body) {
  const Share share = share_of_grid(shape);
  for_packs(shape, share, body);
  for_singles(shape, share, body);
}

/// The only place where kernels are launched. The grid has a thread for each of `items`, but no more blocks
/// than the device can run at a time: the kernel's loop strides over the rest.
template <class... Parameters>
cudaError_t launch(void (*kernel)(Parameters...), const LaunchTarget& target, std::size_t items,
                   unsigned rows, int threads, std::size_t shared_bytes, Parameters... parameters) {
  const auto* address = reinterpret_cast<const void*>(kernel);
  int blocks = 0;
  const cudaError_t status = target.occupancy->blocks(address, threads, shared_bytes, blocks);
  if (status != cudaSuccess) return status;
  const auto most = static_cast<std::size_t>(std::max(1, blocks * target.multiprocessors));
  const auto per_block = static_cast<std::size_t>(threads);
  const std::size_t needed = std::max<std::size_t>(1, (items + per_block - 1) / per_block);
  void* arguments[] = {&parameters...};
  return cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(std::min(most, needed)), rows),
                          dim3(static_cast<unsigned>(threads)), arguments, shared_bytes, target.stream);
}

}  // namespace troupe::gpu
