#pragma once

#include <cstring>
#include <ctime>
#include <functional>
#include <tuple>
#include <utility>

#include "cuda_runtime_api.h"

/// The part of CUDA C++ that Troupe's kernels are written in, for a compiler of C++. A block runs in one
/// thread of the host: its threads run one after another, and each that comes to a barrier or a shuffle rests
/// there until the others have come (tests/cuda_emulation/block.hpp).

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __shared__ static thread_local

struct uint3 {
  unsigned x, y, z;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

extern thread_local uint3 threadIdx;
extern thread_local uint3 blockIdx;
extern thread_local dim3 blockDim;
extern thread_local dim3 gridDim;

namespace troupe::cuda_emulation {

/// Enqueues `thread`, which runs for every thread of every block; `kernel` is the address of its function.
cudaError_t launch(const void* kernel, dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream,
                   std::function<void()> thread);
/// The block's dynamic shared memory.
void* dynamic_shared_memory();
void block_barrier();
/// What thread `lane` of the caller's warp gave to the same call; the caller's own where there is none.
std::uint64_t exchange_in_warp(std::uint64_t value, unsigned lane);
unsigned lane_in_warp();
void rest();

template <class Value>
Value shuffle(Value value, unsigned lane) {
  static_assert(sizeof(Value) <= sizeof(std::uint64_t));
  std::uint64_t word = 0;
  std::memcpy(&word, &value, sizeof value);
  word = exchange_in_warp(word, lane);
  std::memcpy(&value, &word, sizeof value);
  return value;
}

}  // namespace troupe::cuda_emulation

inline void __syncthreads() {
  troupe::cuda_emulation::block_barrier();
}

inline void __syncwarp() {
  troupe::cuda_emulation::exchange_in_warp(0, troupe::cuda_emulation::lane_in_warp());
}

template <class Value>
Value __shfl_xor_sync(unsigned /*mask*/, Value value, int lanes) {
  return troupe::cuda_emulation::shuffle(
      value, troupe::cuda_emulation::lane_in_warp() ^ static_cast<unsigned>(lanes));
}

template <class Value>
Value atomicAdd(Value* memory, Value value) {
  return __atomic_fetch_add(memory, value, __ATOMIC_RELAXED);
}

template <class Value>
Value atomicMax(Value* memory, Value value) {
  Value found = __atomic_load_n(memory, __ATOMIC_RELAXED);
  while (found < value &&
         !__atomic_compare_exchange_n(memory, &found, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return found;
}

inline void __nanosleep(unsigned /*nanoseconds*/) {
  troupe::cuda_emulation::rest();
}

/// Ticks of a gigahertz.
inline long long clock64() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

namespace troupe::cuda_emulation {

template <class... Parameters, std::size_t... at>
std::tuple<Parameters...> arguments_of(void** arguments, std::index_sequence<at...> /*all*/) {
  return {*static_cast<Parameters*>(arguments[at])...};
}

}  // namespace troupe::cuda_emulation

template <class... Parameters>
cudaError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments,
                             std::size_t shared_bytes, cudaStream_t stream) {
  // The arguments are copied now, as a launch does; they live on the caller's stack.
  auto copies = troupe::cuda_emulation::arguments_of<Parameters...>(arguments,
                                                                    std::index_sequence_for<Parameters...>());
  return troupe::cuda_emulation::launch(reinterpret_cast<const void*>(kernel), grid, block, shared_bytes,
                                        stream,
                                        [kernel, copies = std::move(copies)] { std::apply(kernel, copies); });
}
