#include "apps/gpt/kernels/attention_tile.cuh"
#include "apps/gpt/kernels/launch.hpp"

namespace troupe::apps::gpt::cuda {
namespace {

constexpr unsigned kDeltaRows = 4;

// delta = sum of y * d_y over a head, for each position: what the softmax's gradient subtracts from every
// weight.
template <class E>
__global__ void delta_kernel(Attention<E> a, const E* d_y, float* delta) {
  const Head<E> head = Head<E>::of_block(a);
  const unsigned row = blockIdx.x * kDeltaRows + threadIdx.x / kWarp;
  if (row >= head.length) return;
  const std::size_t start = head.offset + row * head.stride;
  float sum = 0;
  for (unsigned i = threadIdx.x % kWarp; i < head.size; i += kWarp) {
    sum += widened(a.y[start + i]) * widened(d_y[start + i]);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) delta[head.statistics + row] = sum;
}

// For one query and one key: the weight from forward, and the gradient of their score but for the scale.
struct Pair {
  float weight, d_score;
};

__device__ inline Pair pair_of(float score, float d_weight, float log_sum, float delta, float scale) {
  const float weight = power_of_two(fmaf(score, scale, -log_sum));
  return {weight, weight * (d_weight - delta)};
}

// A tile of queries that a block iterates over, with what backward needs about them.
template <class E, int kD>
struct PassingQueries {
  SharedTile<E, kD> queries;
  SharedTile<E, kD> d_outputs;
  float log_sums[kPassing<E>];
  float deltas[kPassing<E>];

  /// Begins to copy; called by all threads of the block.
  __device__ void fill(const Attention<E>& a, const AttentionGradients<E>& gradients, const Head<E>& head,
                       unsigned first_query) {
    queries.fill(head.rows(a.query), first_query);
    d_outputs.fill(head.rows(gradients.d_y), first_query);
    if (threadIdx.x < kPassing<E>) {
      const unsigned query = first_query + threadIdx.x;
      const bool exists = query < head.length;
      const std::size_t from = head.statistics + (exists ? query : 0);
      begin_copy<float, 1>(a.log_sum + from, log_sums + threadIdx.x, exists);
      begin_copy<float, 1>(gradients.delta + from, deltas + threadIdx.x, exists);
    }
  }
};

// A block has a tile of keys, and iterates over the queries of all heads that read it, head after head: rows
// are keys here, columns queries.
template <class E, int kD>
__global__ void __launch_bounds__(kAttentionThreads, kKeysBlocks<E, kD>)
    attention_keys_kernel(Attention<E> a, AttentionGradients<E> gradients, float scale) {
  __shared__ PassingQueries<E, kD> passing[kPlaces<kD>];
  const auto key_heads = static_cast<unsigned>(a.key_heads);
  const auto sharing = static_cast<unsigned>(a.heads) / key_heads;
  const unsigned batch = blockIdx.y / key_heads, first_head = blockIdx.y % key_heads * sharing;
  const Head<E> keys(a, batch, first_head);
  const unsigned tile_row = blockIdx.x * kTileRows;
  const unsigned first_row = tile_row + threadIdx.x / kWarp * 16;
  const LeftRows<E, kD> key(keys.key_rows(a.key), first_row);
  const LeftRows<E, kD> value(keys.key_rows(a.value), first_row);
  SumRows<kD> d_key, d_value;
  // No query before these sees the tile's keys.
  unsigned begin = 0;
  while (begin < keys.length && keys.position(begin + kPassing<E> - 1) < tile_row) begin += kPassing<E>;
  for (unsigned shared = 0; shared < sharing; ++shared) {
    const Head<E> head(a, batch, first_head + shared);
    const auto fill = [&](unsigned place, unsigned first_query) {
      passing[place].fill(a, gradients, head, first_query);
    };
    const auto use = [&](unsigned place, unsigned first_query) {
      const PassingQueries<E, kD>& tile = passing[place];
      for (unsigned sixteen = 0; sixteen < kPassing<E>; sixteen += 16) {
        const unsigned from = first_query + sixteen;
        const bool all_see = from + 15 < head.length && first_row + 15 <= head.position(from);
        FragmentC weights[2], d_scores[2];
#pragma unroll
        for (unsigned n = 0; n < 2; ++n) {
          weights[n] = key.times(tile.queries, sixteen + n * 8);
          d_scores[n] = value.times(tile.d_outputs, sixteen + n * 8);
          for (int i = 0; i < 4; ++i) {
            const unsigned place_of_query = sixteen + n * 8 + pair_of_lane() + i % 2;
            Pair pair = pair_of(weights[n].values[i], d_scores[n].values[i], tile.log_sums[place_of_query],
                                tile.deltas[place_of_query], scale * kLog2E);
            if (!all_see) {
              const unsigned row = first_row + group_of_lane() + i / 2 * 8;
              const unsigned query = first_query + place_of_query;
              if (query >= head.length || row > head.position(query)) pair = {0, 0};
            }
            weights[n].values[i] = pair.weight;
            d_scores[n].values[i] = pair.d_score;
          }
        }
        d_value.add(joined<E>(weights[0], weights[1]), tile.d_outputs, sixteen);
        d_key.add(joined<E>(d_scores[0], d_scores[1]), tile.queries, sixteen);
      }
    };
    for_each_tile<kPlaces<kD>>(begin, head.length, kPassing<E>, fill, use);
  }
  const float scales[2] = {scale, scale};
  d_key.scale(scales);
  d_key.store_rows(gradients.key + keys.key_offset, keys.key_rows(a.key), first_row);
  d_value.store_rows(gradients.value + keys.key_offset, keys.key_rows(a.value), first_row);
}

// A block has a tile of queries, and iterates over keys.
template <class E, int kD>
__global__ void __launch_bounds__(kAttentionThreads, kQueriesBlocks<E, kD>)
    attention_queries_kernel(Attention<E> a, AttentionGradients<E> gradients, float scale) {
  __shared__ SharedTile<E, kD> keys[kPlaces<kD>];
  __shared__ SharedTile<E, kD> values[kPlaces<kD>];
  const Head<E> head = Head<E>::of_block(a);
  const unsigned tile_row = (gridDim.x - 1 - blockIdx.x) * kTileRows;
  const unsigned first_row = tile_row + threadIdx.x / kWarp * 16;
  const LeftRows<E, kD> query(head.rows(a.query), first_row);
  const LeftRows<E, kD> d_output(head.rows(gradients.d_y), first_row);
  float log_sum[2] = {}, delta[2] = {};
  for (int half = 0; half < 2; ++half) {
    const unsigned row = first_row + group_of_lane() + half * 8;
    if (row >= head.length) continue;
    log_sum[half] = a.log_sum[head.statistics + row];
    delta[half] = gradients.delta[head.statistics + row];
  }
  SumRows<kD> d_query;
  const unsigned last = head.position(first_row + 15);
  const unsigned all_see = first_row + 15 < head.length ? head.position(first_row) : 0;
  const auto fill = [&](unsigned place, unsigned first_key) {
    keys[place].fill(head.key_rows(a.key), first_key);
    values[place].fill(head.key_rows(a.value), first_key);
  };
  const auto use = [&](unsigned place, unsigned first_key) {
    for (unsigned sixteen = 0; sixteen < kPassing<E>; sixteen += 16) {
      const unsigned from = first_key + sixteen;
      if (from > last) break;
      FragmentC d_scores[2];
#pragma unroll
      for (unsigned n = 0; n < 2; ++n) {
        const FragmentC scores = query.times(keys[place], sixteen + n * 8);
        d_scores[n] = d_output.times(values[place], sixteen + n * 8);
        for (int i = 0; i < 4; ++i) {
          float d_score =
              pair_of(scores.values[i], d_scores[n].values[i], log_sum[i / 2], delta[i / 2], scale * kLog2E)
                  .d_score;
          if (from + 15 > all_see) {
            const unsigned row = first_row + group_of_lane() + i / 2 * 8;
            const unsigned key = from + n * 8 + pair_of_lane() + i % 2;
            if (row >= head.length || key > head.position(row)) d_score = 0;
          }
          d_scores[n].values[i] = d_score;
        }
      }
      d_query.add(joined<E>(d_scores[0], d_scores[1]), keys[place], sixteen);
    }
  };
  for_each_tile<kPlaces<kD>>(0, head.keys_seen(tile_row), kPassing<E>, fill, use);
  const float scales[2] = {scale, scale};
  d_query.scale(scales);
  d_query.store_rows(gradients.query + head.offset, head.rows(a.query), first_row);
}

}  // namespace

template <class E>
cudaError_t attention_backward(const Attention<E>& a, const AttentionGradients<E>& gradients,
                               cudaStream_t stream) {
  const auto heads = static_cast<unsigned>(a.batch * a.heads);
  const LaunchShape rows{{blocks_for(a.length, kDeltaRows), heads}, kDeltaRows * kWarp};
  const auto key_heads = static_cast<unsigned>(a.batch * a.key_heads);
  const LaunchShape tiles{{blocks_for(a.length, kTileRows), heads}, kAttentionThreads};
  const LaunchShape key_tiles{{blocks_for(key_length_of(a), kTileRows), key_heads}, kAttentionThreads};
  const float scale = 1.0F / sqrtf(static_cast<float>(a.head_size));
  cudaError_t status = launch(delta_kernel<E>, rows, stream, a, gradients.d_y, gradients.delta);
  if (status != cudaSuccess) return status;
  return with_head_size(a.head_size, [&](auto size) {
    constexpr int kD = decltype(size)::value;
    status = launch(attention_keys_kernel<E, kD>, key_tiles, stream, a, gradients, scale);
    if (status != cudaSuccess) return status;
    return launch(attention_queries_kernel<E, kD>, tiles, stream, a, gradients, scale);
  });
}

template cudaError_t attention_backward<float>(const Attention<float>&, const AttentionGradients<float>&,
                                               cudaStream_t);
template cudaError_t attention_backward<Bf16>(const Attention<Bf16>&, const AttentionGradients<Bf16>&,
                                              cudaStream_t);

}  // namespace troupe::apps::gpt::cuda
