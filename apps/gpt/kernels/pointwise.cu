#include <algorithm>

#include "apps/gpt/kernels/kernels.hpp"
#include "apps/gpt/kernels/launch.hpp"
#include "apps/gpt/kernels/reduce.cuh"

namespace troupe::apps::gpt::cuda {
namespace {

constexpr unsigned kThreads = 256;

// Index of the first element of the thread's pack.
template <int W>
__device__ inline std::size_t place() {
  return (std::size_t{blockIdx.x} * kThreads + threadIdx.x) * W;
}

template <int W>
LaunchShape shape_for(std::size_t count) {
  return {blocks_for(count, std::size_t{kThreads} * W), kThreads};
}

template <class E, int W>
__global__ void embedding_forward_kernel(const std::int32_t* tokens, std::size_t count, std::size_t width,
                                         const E* table, E* x) {
  const std::size_t i = place<W>();
  if (i >= count) return;
  const std::size_t row = i / width;
  if (tokens[row] == kElsewhere) return store<E, W>(Pack<E, W>{}, x + i);
  store<E, W>(load<E, W>(table + static_cast<std::size_t>(tokens[row]) * width + (i - row * width)), x + i);
}

// A block row has a segment.
template <class E>
__global__ void embedding_segments_kernel(EmbeddingOrder order, std::size_t width, const E* d_x,
                                          float* partials) {
  const std::size_t c = place<1>();
  if (c >= width) return;
  const std::size_t segment = blockIdx.y;
  float sum = 0;
  for (std::int32_t i = order.segments[segment]; i < order.segments[segment + 1]; ++i) {
    sum += widened(d_x[static_cast<std::size_t>(order.order[i]) * width + c]);
  }
  partials[segment * width + c] = sum;
}

__global__ void embedding_tokens_kernel(EmbeddingOrder order, std::size_t first, std::size_t width,
                                        const float* partials, float* d_table) {
  const std::size_t c = place<1>();
  if (c >= width) return;
  const std::size_t token = first + blockIdx.y;
  float sum = 0;
  for (std::int32_t s = order.first_segment[token]; s < order.first_segment[token + 1]; ++s) {
    sum += partials[static_cast<std::size_t>(s) * width + c];
  }
  d_table[static_cast<std::size_t>(order.tokens[token]) * width + c] += sum;
}

template <class E, int W>
__device__ inline void turn_pairs(E* low, std::size_t half, const float* cosine, const float* sine,
                                  float direction) {
  auto first = load<E, W>(low);
  auto second = load<E, W>(low + half);
  for (int i = 0; i < W; ++i) {
    const float a = widened(first.at[i]), b = widened(second.at[i]), s = direction * sine[i];
    first.at[i] = narrowed<E>(a * cosine[i] - b * s);
    second.at[i] = narrowed<E>(b * cosine[i] + a * s);
  }
  store<E, W>(first, low);
  store<E, W>(second, low + half);
}

template <class E, int W>
__global__ void rotary_kernel(Turn<E> turn) {
  const std::size_t pair = place<W>(), all_heads = turn.heads + turn.key_heads;
  if (pair >= turn.rows * all_heads * turn.half) return;
  const std::size_t head = pair / turn.half;  // of all rows
  const std::size_t i = pair - head * turn.half;
  const std::size_t row = head / all_heads, of_row = head - row * all_heads;
  const std::size_t angle = row % turn.length * turn.half + i;
  const bool is_query = of_row < turn.heads;
  E* heads = is_query ? turn.query + (row * turn.heads + of_row) * 2 * turn.half
                      : turn.key + (row * turn.key_heads + of_row - turn.heads) * 2 * turn.half;
  turn_pairs<E, W>(heads + i, turn.half, turn.cosine + angle, turn.sine + angle, turn.direction);
}

__device__ inline float sigmoid_of(float x) {
  return 1.0F / (1.0F + expf(-x));
}

template <class E, int W>
__global__ void swiglu_forward_kernel(std::size_t count, const E* gate, const E* up, E* y) {
  const std::size_t i = place<W>();
  if (i >= count) return;
  auto g = load<E, W>(gate + i);
  const auto u = load<E, W>(up + i);
  for (int k = 0; k < W; ++k) {
    const float x = widened(g.at[k]);
    g.at[k] = narrowed<E>(x * sigmoid_of(x) * widened(u.at[k]));
  }
  store<E, W>(g, y + i);
}

template <class E, int W>
__global__ void swiglu_backward_kernel(std::size_t count, const E* gate, const E* up, const E* d_y, E* d_gate,
                                       E* d_up) {
  const std::size_t i = place<W>();
  if (i >= count) return;
  auto g = load<E, W>(gate + i);
  auto u = load<E, W>(up + i);
  const auto d = load<E, W>(d_y + i);
  for (int k = 0; k < W; ++k) {
    const float x = widened(g.at[k]), sigmoid = sigmoid_of(x), d_out = widened(d.at[k]);
    g.at[k] = narrowed<E>(d_out * widened(u.at[k]) * sigmoid * (1.0F + x * (1.0F - sigmoid)));
    u.at[k] = narrowed<E>(d_out * x * sigmoid);
  }
  store<E, W>(g, d_gate + i);
  store<E, W>(u, d_up + i);
}

constexpr float kGeluScale = 0.7978845608028654F;  // sqrt(2 / pi)
constexpr float kGeluCubic = 0.044715F;

template <class E, int W>
__global__ void gelu_forward_kernel(std::size_t count, const E* x, E* y) {
  const std::size_t i = place<W>();
  if (i >= count) return;
  auto pack = load<E, W>(x + i);
  for (int k = 0; k < W; ++k) {
    const float v = widened(pack.at[k]);
    pack.at[k] = narrowed<E>(0.5F * v * (1.0F + tanhf(kGeluScale * (v + kGeluCubic * v * v * v))));
  }
  store<E, W>(pack, y + i);
}

template <class E, int W>
__global__ void gelu_backward_kernel(std::size_t count, const E* x, const E* d_y, E* d_x) {
  const std::size_t i = place<W>();
  if (i >= count) return;
  auto pack = load<E, W>(x + i);
  const auto d = load<E, W>(d_y + i);
  for (int k = 0; k < W; ++k) {
    const float v = widened(pack.at[k]);
    const float tangent = tanhf(kGeluScale * (v + kGeluCubic * v * v * v));
    const float slope = kGeluScale * (1.0F + 3.0F * kGeluCubic * v * v) * (1.0F - tangent * tangent);
    pack.at[k] = narrowed<E>(widened(d.at[k]) * 0.5F * (1.0F + tangent + v * slope));
  }
  store<E, W>(pack, d_x + i);
}

template <class E>
__global__ void widen_kernel(std::size_t count, const E* from, float* to) {
  const std::size_t i = place<1>();
  if (i < count) to[i] = widened(from[i]);
}

}  // namespace

template <class E>
cudaError_t embedding_forward(const std::int32_t* tokens, std::size_t rows, std::size_t width, const E* table,
                              E* x, cudaStream_t stream) {
  constexpr int W = kWide<E>;
  const std::size_t count = rows * width;
  if (width % W == 0) {
    return launch(embedding_forward_kernel<E, W>, shape_for<W>(count), stream, tokens, count, width, table,
                  x);
  }
  return launch(embedding_forward_kernel<E, 1>, shape_for<1>(count), stream, tokens, count, width, table, x);
}

template <class E>
cudaError_t embedding_backward(const EmbeddingOrder& order, std::size_t width, const E* d_x, float* partials,
                               float* d_table, cudaStream_t stream) {
  // A grid has at most 65,535 rows of blocks.
  constexpr std::size_t kMostRows = 65535;
  for (std::size_t first = 0; first < order.segment_count; first += kMostRows) {
    EmbeddingOrder part = order;
    part.segments += first;
    const auto rows = static_cast<unsigned>(std::min(kMostRows, order.segment_count - first));
    const LaunchShape shape{{blocks_for(width, kThreads), rows}, kThreads};
    const cudaError_t status =
        launch(embedding_segments_kernel<E>, shape, stream, part, width, d_x, partials + first * width);
    if (status != cudaSuccess) return status;
  }
  for (std::size_t first = 0; first < order.token_count; first += kMostRows) {
    const auto rows = static_cast<unsigned>(std::min(kMostRows, order.token_count - first));
    const LaunchShape shape{{blocks_for(width, kThreads), rows}, kThreads};
    const cudaError_t status =
        launch(embedding_tokens_kernel, shape, stream, order, first, width, partials, d_table);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

template <class E>
cudaError_t rotary(const Turn<E>& turn, cudaStream_t stream) {
  constexpr int W = kWide<E>;
  const std::size_t pairs = turn.rows * (turn.heads + turn.key_heads) * turn.half;
  if (turn.half % W == 0) return launch(rotary_kernel<E, W>, shape_for<W>(pairs), stream, turn);
  return launch(rotary_kernel<E, 1>, shape_for<1>(pairs), stream, turn);
}

template <class E>
cudaError_t swiglu_forward(std::size_t count, const E* gate, const E* up, E* y, cudaStream_t stream) {
  constexpr int W = kWide<E>;
  if (count % W == 0)
    return launch(swiglu_forward_kernel<E, W>, shape_for<W>(count), stream, count, gate, up, y);
  return launch(swiglu_forward_kernel<E, 1>, shape_for<1>(count), stream, count, gate, up, y);
}

template <class E>
cudaError_t swiglu_backward(std::size_t count, const E* gate, const E* up, const E* d_y, E* d_gate, E* d_up,
                            cudaStream_t stream) {
  constexpr int W = kWide<E>;
  if (count % W == 0) {
    return launch(swiglu_backward_kernel<E, W>, shape_for<W>(count), stream, count, gate, up, d_y, d_gate,
                  d_up);
  }
  return launch(swiglu_backward_kernel<E, 1>, shape_for<1>(count), stream, count, gate, up, d_y, d_gate,
                d_up);
}

template <class E>
cudaError_t gelu_forward(std::size_t count, const E* x, E* y, cudaStream_t stream) {
  constexpr int W = kWide<E>;
  if (count % W == 0) return launch(gelu_forward_kernel<E, W>, shape_for<W>(count), stream, count, x, y);
  return launch(gelu_forward_kernel<E, 1>, shape_for<1>(count), stream, count, x, y);
}

template <class E>
cudaError_t gelu_backward(std::size_t count, const E* x, const E* d_y, E* d_x, cudaStream_t stream) {
  constexpr int W = kWide<E>;
  if (count % W == 0)
    return launch(gelu_backward_kernel<E, W>, shape_for<W>(count), stream, count, x, d_y, d_x);
  return launch(gelu_backward_kernel<E, 1>, shape_for<1>(count), stream, count, x, d_y, d_x);
}

template <class E>
cudaError_t widen(std::size_t count, const E* from, float* to, cudaStream_t stream) {
  return launch(widen_kernel<E>, shape_for<1>(count), stream, count, from, to);
}

template cudaError_t embedding_forward<float>(const std::int32_t*, std::size_t, std::size_t, const float*,
                                              float*, cudaStream_t);
template cudaError_t embedding_forward<Bf16>(const std::int32_t*, std::size_t, std::size_t, const Bf16*,
                                             Bf16*, cudaStream_t);
template cudaError_t embedding_backward<float>(const EmbeddingOrder&, std::size_t, const float*, float*,
                                               float*, cudaStream_t);
template cudaError_t embedding_backward<Bf16>(const EmbeddingOrder&, std::size_t, const Bf16*, float*, float*,
                                              cudaStream_t);
template cudaError_t rotary<float>(const Turn<float>&, cudaStream_t);
template cudaError_t rotary<Bf16>(const Turn<Bf16>&, cudaStream_t);
template cudaError_t swiglu_forward<float>(std::size_t, const float*, const float*, float*, cudaStream_t);
template cudaError_t swiglu_forward<Bf16>(std::size_t, const Bf16*, const Bf16*, Bf16*, cudaStream_t);
template cudaError_t swiglu_backward<float>(std::size_t, const float*, const float*, const float*, float*,
                                            float*, cudaStream_t);
template cudaError_t swiglu_backward<Bf16>(std::size_t, const Bf16*, const Bf16*, const Bf16*, Bf16*, Bf16*,
                                           cudaStream_t);
template cudaError_t gelu_forward<float>(std::size_t, const float*, float*, cudaStream_t);
template cudaError_t gelu_forward<Bf16>(std::size_t, const Bf16*, Bf16*, cudaStream_t);
template cudaError_t gelu_backward<float>(std::size_t, const float*, const float*, float*, cudaStream_t);
template cudaError_t gelu_backward<Bf16>(std::size_t, const Bf16*, const Bf16*, Bf16*, cudaStream_t);
template cudaError_t widen<float>(std::size_t, const float*, float*, cudaStream_t);
template cudaError_t widen<Bf16>(std::size_t, const Bf16*, float*, cudaStream_t);

}  // namespace troupe::apps::gpt::cuda
