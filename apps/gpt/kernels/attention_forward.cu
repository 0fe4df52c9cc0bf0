#include "apps/gpt/kernels/attention_tile.cuh"
#include "apps/gpt/kernels/launch.hpp"

namespace troupe::apps::gpt::cuda {
namespace {

// The softmax of a lane's two rows while iterating over keys: the largest score so far, and this lane's share
// of the sum of 2^((score - largest) * scale).
struct RunningSoftmax {
  float scale;
  float most[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};

  // Turns scores into weights, and returns the factors for earlier sums.
  template <int kParts>
  __device__ void take(FragmentC (&scores)[kParts], float (&correction)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float larger = most[half];
#pragma unroll
      for (int n = 0; n < kParts; ++n) {
        larger = fmaxf(larger, fmaxf(scores[n].values[2 * half], scores[n].values[2 * half + 1]));
      }
      larger = fmaxf(larger, __shfl_xor_sync(kEveryLane, larger, 1));
      larger = fmaxf(larger, __shfl_xor_sync(kEveryLane, larger, 2));
      correction[half] = power_of_two((most[half] - larger) * scale);
      most[half] = larger;
      sum[half] *= correction[half];
      const float shift = -larger * scale;
#pragma unroll
      for (int n = 0; n < kParts; ++n) {
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[n].values[i] = power_of_two(fmaf(scores[n].values[i], scale, shift));
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

// A row does not see keys after its own; every row sees key 0, so its largest score is a number from the
// first tile on.
template <class E>
__device__ inline void hide_later_keys(FragmentC (&scores)[kPassing<E> / 8], const Head<E>& head,
                                       unsigned first_row, unsigned first_key) {
  for (int half = 0; half < 2; ++half) {
    const unsigned last = head.position(first_row + group_of_lane() + half * 8);
#pragma unroll
    for (unsigned n = 0; n < kPassing<E> / 8; ++n) {
      for (unsigned i = 0; i < 2; ++i) {
        if (first_key + n * 8 + pair_of_lane() + i > last) scores[n].values[2 * half + i] = -INFINITY;
      }
    }
  }
}

template <class E, int kD>
__global__ void __launch_bounds__(kAttentionThreads, kForwardBlocks<E, kD>)
    attention_forward_kernel(Attention<E> a, float scale) {
  __shared__ SharedTile<E, kD> keys[kPlaces<kD>];
  __shared__ SharedTile<E, kD> values[kPlaces<kD>];
  const Head<E> head = Head<E>::of_block(a);
  // The tiles with the most keys start first.
  const unsigned tile_row = (gridDim.x - 1 - blockIdx.x) * kTileRows;
  const unsigned first_row = tile_row + threadIdx.x / kWarp * 16;
  const LeftRows<E, kD> query(head.rows(a.query), first_row);
  RunningSoftmax softmax{scale};
  SumRows<kD> sum;
  const unsigned all_see = head.position(first_row), last = head.position(first_row + 15);
  const auto fill = [&](unsigned place, unsigned first_key) {
    keys[place].fill(head.key_rows(a.key), first_key);
    values[place].fill(head.key_rows(a.value), first_key);
  };
  for_each_tile<kPlaces<kD>>(
      0, head.keys_seen(tile_row), kPassing<E>, fill, [&](unsigned place, unsigned first_key) {
        if (first_key > last) return;
        FragmentC weights[kPassing<E> / 8];
#pragma unroll
        for (unsigned n = 0; n < kPassing<E> / 8; ++n) weights[n] = query.times(keys[place], n * 8);
        if (first_key + kPassing<E> - 1 > all_see) hide_later_keys(weights, head, first_row, first_key);
        float correction[2];
        softmax.take(weights, correction);
        sum.scale(correction);
#pragma unroll
        for (unsigned k = 0; k < kPassing<E> / 16; ++k) {
          sum.add(joined<E>(weights[2 * k], weights[2 * k + 1]), values[place], k * 16);
        }
      });
  softmax.finish();
  const float inverse[2] = {1.0F / softmax.sum[0], 1.0F / softmax.sum[1]};
  sum.scale(inverse);
  sum.store_rows(a.y + head.offset, head.rows(a.y), first_row);
  for (int half = 0; half < 2; ++half) {
    const unsigned row = first_row + group_of_lane() + half * 8;
    if (pair_of_lane() != 0 || row >= head.length) continue;
    a.log_sum[head.statistics + row] = softmax.most[half] * scale + log2f(softmax.sum[half]);
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
