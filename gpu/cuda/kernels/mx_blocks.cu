#include "gpu/cuda/kernels/packs.cuh"
#include "gpu/mx_arithmetic.hpp"

namespace troupe::gpu {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kAllLanes = 0xffff'ffffU;
constexpr std::size_t kWarp = 32;
constexpr std::size_t kMxBlock = 32;  // core::kMxBlockElements
constexpr std::size_t kPack = kPackElements;
constexpr int kLanesOfBlock = kMxBlock / kPack;

/// Neighbouring lanes each have one pack of a block and find its scale together, so all lanes of a warp
/// execute the loop equally often: those beyond the end with empty packs.
template <class Body>
__device__ __forceinline__ void for_each_mx_pack(std::size_t count, const Body& body) {
  const std::size_t thread = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::size_t threads = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  const std::size_t lane = thread % kWarp;
  for (std::size_t base = (thread - lane) * kPack; base < count; base += threads * kPack) {
    const std::size_t first = base + lane * kPack;
    body(first, first >= count ? 0 : count - first < kPack ? count - first : kPack);
  }
}

/// Elements missing in a pack are zero.
__device__ __forceinline__ Floats<kPackElements> load_some(const DeviceArray& array, std::size_t first,
                                                           std::size_t some) {
  if (some == kPack && is_aligned(array, first)) return load<kPackElements>(array, first);
  Floats<kPackElements> values = {};
  for (std::size_t i = 0; i < some; ++i) values.value[i] = load<1>(array, first + i).value[0];
  return values;
}

__device__ __forceinline__ void store_some(const DeviceArray& array, std::size_t first, std::size_t some,
                                           const Floats<kPackElements>& values) {
  if (some == kPack && is_aligned(array, first)) return store(array, first, values);
  for (std::size_t i = 0; i < some; ++i) store(array, first + i, Floats<1>{{values.value[i]}});
}

/// For the block that contains this lane's pack.
template <class Mx>
__device__ __forceinline__ std::uint32_t shared_scale(const Floats<kPackElements>& pack) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < kPack; ++i) {
    const std::uint32_t magnitude = formats::bits_of(pack.value[i]) & 0x7fff'ffffU;
    largest = magnitude > largest ? magnitude : largest;
  }
  for (int distance = kLanesOfBlock / 2; distance > 0; distance /= 2) {
    const std::uint32_t other = __shfl_xor_sync(kAllLanes, largest, distance);
    largest = other > largest ? other : largest;
  }
  return Mx::scale_of(largest);
}

template <class Mx>
__global__ void round_to_mx(DeviceArray source, DeviceArray destination, std::size_t count) {
  for_each_mx_pack(count, [&](std::size_t first, std::size_t some) {
    auto pack = load_some(source, first, some);
    const std::uint32_t scale = shared_scale<Mx>(pack);
    for (std::size_t i = 0; i < kPack; ++i) {
      const std::uint32_t code = Mx::code_of(formats::bits_of(pack.value[i]), scale) & 0xffU;
      pack.value[i] = formats::float_of(Mx::value_of(code, scale));
    }
    store_some(destination, first, some, pack);
  });
}

template <class Mx>
__global__ void pack_mx(DeviceArray source, std::uint8_t* codes, std::size_t count) {
  std::uint8_t* const scales = codes + count;
  for_each_mx_pack(count, [&](std::size_t first, std::size_t some) {
    const auto pack = load_some(source, first, some);
    const std::uint32_t scale = shared_scale<Mx>(pack);
    if (some == 0) return;
    Codes<std::uint8_t, kPackElements> bytes;
    for (std::size_t i = 0; i < kPack; ++i) {
      bytes.code[i] = static_cast<std::uint8_t>(Mx::code_of(formats::bits_of(pack.value[i]), scale));
    }
    if (reinterpret_cast<std::uintptr_t>(codes) % alignof(decltype(bytes)) == 0) {
      *reinterpret_cast<decltype(bytes)*>(codes + first) = bytes;
    } else {
      for (std::size_t i = 0; i < kPack; ++i) codes[first + i] = bytes.code[i];
    }
    if (first % kMxBlock == 0) scales[first / kMxBlock] = static_cast<std::uint8_t>(scale);
  });
}

template <class Mx>
__global__ void unpack_mx(const std::uint8_t* packed, std::size_t part, DeviceArray destination,
                          std::size_t count) {
  for_each_mx_pack(count, [&](std::size_t first, std::size_t some) {
    if (some == 0) return;
    const std::uint8_t* const codes = packed + first / part * (part + part / kMxBlock);
    const std::size_t in_part = first % part;
    const std::uint32_t scale = codes[part + in_part / kMxBlock];
    using Bytes = Codes<std::uint8_t, kPackElements>;
    Bytes bytes;
    if (reinterpret_cast<std::uintptr_t>(codes) % alignof(Bytes) == 0) {
      bytes = *reinterpret_cast<const Bytes*>(codes + in_part);
    } else {
      for (std::size_t i = 0; i < kPack; ++i) bytes.code[i] = codes[in_part + i];
    }
    Floats<kPackElements> pack;
    for (std::size_t i = 0; i < kPack; ++i) {
      pack.value[i] = formats::float_of(Mx::value_of(bytes.code[i], scale));
    }
    store_some(destination, first, some, pack);
  });
}

std::size_t packs_of(std::size_t count) {
  return (count + kPack - 1) / kPack;
}

}  // namespace

cudaError_t launch_round_to_mx(formats::Format element, DeviceArray source, DeviceArray destination,
                               std::size_t count, const LaunchTarget& target) {
  if (count == 0) return cudaSuccess;
  const bool is_e4m3 = element == formats::Format::f8_e4m3;
  return launch<DeviceArray, DeviceArray, std::size_t>(
      is_e4m3 ? round_to_mx<formats::MxE4m3> : round_to_mx<formats::MxE5m2>, target, packs_of(count), 1,
      kThreads, 0, source, destination, count);
}

cudaError_t launch_pack_mx(DeviceArray source, DeviceArray packed, std::size_t count,
                           const LaunchTarget& target) {
  if (count == 0) return cudaSuccess;
  const bool is_e4m3 = packed.format == formats::Format::f8_e4m3;
  return launch<DeviceArray, std::uint8_t*, std::size_t>(
      is_e4m3 ? pack_mx<formats::MxE4m3> : pack_mx<formats::MxE5m2>, target, packs_of(count), 1, kThreads, 0,
      source, static_cast<std::uint8_t*>(packed.data), count);
}

cudaError_t launch_unpack_mx(DeviceArray packed, std::size_t part, DeviceArray destination, std::size_t count,
                             const LaunchTarget& target) {
  if (count == 0) return cudaSuccess;
  const bool is_e4m3 = packed.format == formats::Format::f8_e4m3;
  return launch<const std::uint8_t*, std::size_t, DeviceArray, std::size_t>(
      is_e4m3 ? unpack_mx<formats::MxE4m3> : unpack_mx<formats::MxE5m2>, target, packs_of(count), 1, kThreads,
      0, static_cast<const std::uint8_t*>(packed.data), part, destination, count);
}

}  // namespace troupe::gpu
