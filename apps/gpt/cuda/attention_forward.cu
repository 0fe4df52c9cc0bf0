#include "apps/gpt/cuda/attention_tile.cuh"
#include "apps/gpt/cuda/launch.hpp"

namespace troupe::apps::gpt::cuda {
namespace {

// The softmax of a lane's two rows while iterating over keys: the largest score so far, and this lane's share
// of the sum of 2^(score - largest).
struct RunningSoftmax {
  float most[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};

  // Turns scores into weights, and returns the factors for earlier sums.
  template <int kParts>
  __device__ void take(FragmentC (&scores)[kParts], float (&correction)[2]) {
    for (int half = 0; half < 2; ++half) {
      float larger = most[half];
#pragma unroll
      for (int n = 0; n < kParts; ++n) {
        larger = fmaxf(larger, fmaxf(scores[n].values[2 * half], scores[n].values[2 * half + 1]));
      }
      larger = fmaxf(larger, __shfl_xor_sync(kEveryLane, larger, 1));
      larger = fmaxf(larger, __shfl_xor_sync(kEveryLane, larger, 2));
      correction[half] = exp2f(most[half] - larger);
      most[half] = larger;
      sum[half] *= correction[half];
#pragma unroll
      for (int n = 0; n < kParts; ++n) {
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[n].values[i] = exp2f(scores[n].values[i] - larger);
          sum[half] += scores[n].values[i];
        }
      }
    }
  }

  __device__ void finish() {
    for (float& half : sum) {
      half += __shfl_xor_sync(kEveryLane, half, 1);
      half += __shfl_xor_sync(kEveryLane, half, 2);
    }
  }
};

// Scores of the warp's rows with a tile's keys, in powers of two. A row does not see keys after its own;
// every row sees key 0, so its largest score is a number from the first tile on.
template <class E, int kD>
__device__ inline void score(FragmentC (&scores)[kPassing<E> / 8], const Head<E>& head,
                             const LeftRows<E, kD>& query, const SharedTile<E, kD>& keys, float scale,
                             unsigned first_row, unsigned first_key) {
#pragma unroll
  for (unsigned n = 0; n < kPassing<E> / 8; ++n) {
    scores[n] = query.times(keys, n * 8);
    for (int i = 0; i < 4; ++i) {
      const unsigned row = first_row + group_of_lane() + i / 2 * 8;
      const unsigned key = first_key + n * 8 + pair_of_lane() + i % 2;
      scores[n].values[i] = key <= head.position(row) ? scores[n].values[i] * scale : -INFINITY;
    }
  }
}

template <class E, int kD>
__global__ void __launch_bounds__(kAttentionThreads) attention_forward_kernel(Attention<E> a, float scale) {
  __shared__ SharedTile<E, kD> keys;
  __shared__ SharedTile<E, kD> values;
  const Head<E> head = Head<E>::of_block(a);
  // The tiles with the most keys start first.
  const unsigned tile_row = (gridDim.x - 1 - blockIdx.x) * kTileRows;
  const unsigned first_row = tile_row + threadIdx.x / kWarp * 16;
  const LeftRows<E, kD> query(head.rows(a.query), first_row);
  RunningSoftmax softmax;
  SumRows<kD> sum;
  const unsigned seen = head.keys_seen(tile_row), last = head.position(first_row + 15);
  for (unsigned first_key = 0; first_key < seen; first_key += kPassing<E>) {
    __syncthreads();
    keys.fill(head.key_rows(a.key), first_key);
    values.fill(head.key_rows(a.value), first_key);
    __syncthreads();
    if (first_key > last) continue;
    FragmentC weights[kPassing<E> / 8];
    score<E, kD>(weights, head, query, keys, scale, first_row, first_key);
    float correction[2];
    softmax.take(weights, correction);
    sum.scale(correction);
#pragma unroll
    for (unsigned k = 0; k < kPassing<E> / 16; ++k) {
      sum.add(joined<E>(weights[2 * k], weights[2 * k + 1]), values, k * 16);
    }
  }
  softmax.finish();
  const float inverse[2] = {1.0F / softmax.sum[0], 1.0F / softmax.sum[1]};
  sum.scale(inverse);
  sum.store_rows(a.y + head.offset, head.rows(a.y), first_row);
  for (int half = 0; half < 2; ++half) {
    const unsigned row = first_row + group_of_lane() + half * 8;
    if (pair_of_lane() != 0 || row >= head.length) continue;
    a.log_sum[head.statistics + row] = softmax.most[half] + log2f(softmax.sum[half]);
  }
}

}  // namespace

template <class E>
cudaError_t attention_forward(const Attention<E>& a, cudaStream_t stream) {
  const LaunchShape shape{{blocks_for(a.length, kTileRows), static_cast<unsigned>(a.batch * a.heads)},
                          kAttentionThreads};
  const float scale = kLog2E / sqrtf(static_cast<float>(a.head_size));
  return with_head_size(a.head_size, [&](auto size) {
    return launch(attention_forward_kernel<E, decltype(size)::value>, shape, stream, a, scale);
  });
}

template cudaError_t attention_forward<float>(const Attention<float>&, cudaStream_t);
template cudaError_t attention_forward<Bf16>(const Attention<Bf16>&, cudaStream_t);

}  // namespace troupe::apps::gpt::cuda
