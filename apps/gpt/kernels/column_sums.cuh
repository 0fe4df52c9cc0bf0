#pragma once

#include <cstddef>

#include "apps/gpt/kernels/element.cuh"
#include "apps/gpt/kernels/launch.hpp"
#include "apps/gpt/kernels/reduce.cuh"

namespace troupe::apps::gpt::cuda {

// Sums over rows, as for parameters' gradients: first within groups of rows, then over the groups. N rows, C
// width.

inline constexpr unsigned kColumnThreads = 128;
inline constexpr std::size_t kRowsOfLane = 64;

/// A block has a group of rows. If a row has fewer packs than the block has threads, several lanes of threads
/// share the group: lane l has its rows l, l + lanes, and so on.
struct ColumnLayout {
  unsigned packs;  ///< of a row, in the block: a power of two
  unsigned lanes;

  ColumnLayout(std::size_t width, std::size_t of_pack) : packs(1) {
    while (packs < kColumnThreads && packs * of_pack < width) packs *= 2;
    lanes = kColumnThreads / packs;
  }
  std::size_t rows() const { return kRowsOfLane * lanes; }
};

/// partials (groups, kSums, C); `terms` adds the terms of a row in the W columns from `c` on.
template <int kSums, int W, class Terms>
__global__ void column_lanes_kernel(Terms terms, ColumnLayout layout, std::size_t rows, std::size_t width,
                                    float* partials) {
  __shared__ float of_lanes[kColumnThreads * W];
  const unsigned pack = threadIdx.x % layout.packs, lane = threadIdx.x / layout.packs;
  const std::size_t c = (std::size_t{blockIdx.y} * layout.packs + pack) * W;
  const std::size_t begin = blockIdx.x * kRowsOfLane * layout.lanes;
  const std::size_t next = begin + kRowsOfLane * layout.lanes, end = next < rows ? next : rows;
  float sums[kSums][W] = {};
  if (c < width) {
#pragma unroll 8  // rows that are read at a time; they are added one after another
    for (std::size_t row = begin + lane; row < end; row += layout.lanes) terms.add(row, c, sums);
  }
  for (int sum = 0; sum < kSums; ++sum) {
    if (layout.lanes > 1) {
      __syncthreads();
      for (int i = 0; i < W; ++i) of_lanes[threadIdx.x * W + i] = sums[sum][i];
      __syncthreads();
    }
    if (lane > 0 || c >= width) continue;
    for (unsigned other = 1; other < layout.lanes; ++other) {
      for (int i = 0; i < W; ++i) sums[sum][i] += of_lanes[(other * layout.packs + pack) * W + i];
    }
    float* partial = partials + (std::size_t{blockIdx.x} * kSums + sum) * width + c;
    for (int i = 0; i < W; ++i) partial[i] = sums[sum][i];
  }
}

/// Adds the groups' sums, in order, to the totals, (C) each.
template <int kSums>
__global__ void column_groups_kernel(std::size_t groups, std::size_t width, const float* partials,
                                     float* first_total, float* second_total) {
  const std::size_t c = std::size_t{blockIdx.x} * kColumnThreads + threadIdx.x;
  if (c >= width) return;
  float sums[kSums] = {};
#pragma unroll 8
  for (std::size_t group = 0; group < groups; ++group) {
    for (int sum = 0; sum < kSums; ++sum) sums[sum] += partials[(group * kSums + sum) * width + c];
  }
  first_total[c] += sums[0];
  if (kSums > 1) second_total[c] += sums[kSums - 1];
}

/// Adds the sums over the rows to the totals. W divides C or is 1.
template <int kSums, int W, class Terms>
cudaError_t add_column_sums(const Terms& terms, std::size_t rows, std::size_t width, float* partials,
                            float* first_total, float* second_total, cudaStream_t stream) {
  const ColumnLayout layout(width, W);
  const unsigned groups = blocks_for(rows, layout.rows());
  const LaunchShape lanes{{groups, blocks_for(width, std::size_t{layout.packs} * W)}, kColumnThreads};
  const LaunchShape sums{blocks_for(width, kColumnThreads), kColumnThreads};
  const cudaError_t status =
      launch(column_lanes_kernel<kSums, W, Terms>, lanes, stream, terms, layout, rows, width, partials);
  if (status != cudaSuccess) return status;
  return launch(column_groups_kernel<kSums>, sums, stream, std::size_t{groups}, width, partials, first_total,
                second_total);
}

/// The maximum number of floats in `partials`.
inline std::size_t column_partials(std::size_t sums, std::size_t rows, std::size_t width) {
  return sums * width * blocks_for(rows, kRowsOfLane);
}

}  // namespace troupe::apps::gpt::cuda
