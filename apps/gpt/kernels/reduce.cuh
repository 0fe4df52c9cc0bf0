#pragma once

#include <cuda_runtime.h>

#include <cmath>

namespace troupe::apps::gpt {

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kEveryLane = 0xFFFF'FFFFU;

/// Sums and maxima over the lanes of a warp, in butterfly order, which gives every lane the same bits. All
/// lanes must take part.
template <class Value>
__device__ inline Value warp_sum(Value value) {
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(kEveryLane, value, lanes);
  return value;
}

__device__ inline float warp_max(float value) {
  for (int lanes = 16; lanes > 0; lanes /= 2) value = fmaxf(value, __shfl_xor_sync(kEveryLane, value, lanes));
  return value;
}

/// The same over a block of kThreads, all of which must take part.
template <int kThreads, class Value>
__device__ inline Value block_sum(Value value) {
  __shared__ Value of_warp[kThreads / kWarp];
  value = warp_sum(value);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = value;
  __syncthreads();
  Value sum = of_warp[0];
  for (unsigned warp = 1; warp < kThreads / kWarp; ++warp) sum += of_warp[warp];
  return sum;
}

template <int kThreads>
__device__ inline float block_max(float value) {
  __shared__ float of_warp[kThreads / kWarp];
  value = warp_max(value);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = value;
  __syncthreads();
  float most = of_warp[0];
  for (unsigned warp = 1; warp < kThreads / kWarp; ++warp) most = fmaxf(most, of_warp[warp]);
  return most;
}

}  // namespace troupe::apps::gpt
