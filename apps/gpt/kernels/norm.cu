#include "apps/gpt/kernels/column_sums.cuh"
#include "apps/gpt/kernels/kernels.hpp"
#include "apps/gpt/kernels/launch.hpp"
#include "apps/gpt/kernels/reduce.cuh"

namespace troupe::apps::gpt::cuda {
namespace {

// A warp has a row.
constexpr unsigned kRowsOfBlock = 4;

template <class E>
LaunchShape shape_of(const Norm<E>& norm) {
  return {blocks_for(norm.rows, kRowsOfBlock), kRowsOfBlock * kWarp};
}

__device__ inline std::size_t row_of_warp() {
  return std::size_t{blockIdx.x} * kRowsOfBlock + threadIdx.x / kWarp;
}

// Sum of term(c) over the columns of a row: a lane takes every 32nd pack.
template <int W, class Term>
__device__ inline float row_sum(std::size_t width, Term term) {
  float sum = 0;
  for (std::size_t c = threadIdx.x % kWarp * W; c < width; c += kWarp * W) sum += term(c);
  return warp_sum(sum);
}

template <class E, int W, bool kLayer>
__global__ void norm_forward_kernel(Norm<E> norm, E* y) {
  const std::size_t row = row_of_warp();
  if (row >= norm.rows) return;
  const std::size_t C = norm.width;
  const E* x = norm.x + row * C;
  float mean = 0;
  if (kLayer) {
    mean = row_sum<W>(C, [=](std::size_t c) {
      const auto pack = load<E, W>(x + c);
      float sum = 0;
      for (int i = 0; i < W; ++i) sum += widened(pack.at[i]);
      return sum;
    });
    mean /= static_cast<float>(C);
  }
  const float squares = row_sum<W>(C, [=](std::size_t c) {
    const auto pack = load<E, W>(x + c);
    float sum = 0;
    for (int i = 0; i < W; ++i) sum += (widened(pack.at[i]) - mean) * (widened(pack.at[i]) - mean);
    return sum;
  });
  const float scale = 1.0F / sqrtf(squares / static_cast<float>(C) + norm.epsilon);
  if (threadIdx.x % kWarp == 0) {
    norm.scale[row] = scale;
    if (kLayer) norm.mean[row] = mean;
  }
  for (std::size_t c = threadIdx.x % kWarp * W; c < C; c += kWarp * W) {
    auto pack = load<E, W>(x + c);
    for (int i = 0; i < W; ++i) {
      const float normed = (widened(pack.at[i]) - mean) * scale * widened(norm.weight[c + i]);
      pack.at[i] = narrowed<E>(kLayer ? normed + widened(norm.bias[c + i]) : normed);
    }
    store<E, W>(pack, y + row * C + c);
  }
}

template <class E, int W, bool kLayer>
__global__ void norm_backward_kernel(Norm<E> norm, const E* d_rows, E* d_inputs, Write write) {
  const std::size_t row = row_of_warp();
  if (row >= norm.rows) return;
  const std::size_t C = norm.width;
  const E* x = norm.x + row * C;
  const E* d_y = d_rows + row * C;
  const E* weight = norm.weight;
  const float mean = kLayer ? norm.mean[row] : 0.0F;
  const float scale = norm.scale[row];
  float average = 0;
  if (kLayer) {
    average = row_sum<W>(C, [=](std::size_t c) {
      const auto d = load<E, W>(d_y + c);
      float sum = 0;
      for (int i = 0; i < W; ++i) sum += widened(d.at[i]) * widened(weight[c + i]);
      return sum;
    });
    average /= static_cast<float>(C);
  }
  const float dot = row_sum<W>(C, [=](std::size_t c) {
    const auto d = load<E, W>(d_y + c);
    const auto pack = load<E, W>(x + c);
    float sum = 0;
    for (int i = 0; i < W; ++i) {
      sum += widened(d.at[i]) * widened(weight[c + i]) * (widened(pack.at[i]) - mean);
    }
    return sum;
  });
  const float pull = dot * scale * scale / static_cast<float>(C);
  for (std::size_t c = threadIdx.x % kWarp * W; c < C; c += kWarp * W) {
    const auto d = load<E, W>(d_y + c);
    const auto pack = load<E, W>(x + c);
    Pack<E, W> d_x{};
    if (write == Write::accumulate) d_x = load<E, W>(d_inputs + row * C + c);
    for (int i = 0; i < W; ++i) {
      const float centred = widened(pack.at[i]) - mean;
      const float through = widened(d.at[i]) * widened(weight[c + i]) - average - centred * pull;
      d_x.at[i] = narrowed<E>(widened(d_x.at[i]) + scale * through);
    }
    store<E, W>(d_x, d_inputs + row * C + c);
  }
}

// The gradients of weight and bias.
template <class E, int W, bool kLayer>
struct NormTerms {
  Norm<E> norm;
  const E* d_y;

  __device__ void add(std::size_t row, std::size_t c, float (&sums)[kLayer ? 2 : 1][W]) const {
    const auto d = load<E, W>(d_y + row * norm.width + c);
    const auto x = load<E, W>(norm.x + row * norm.width + c);
    const float mean = kLayer ? norm.mean[row] : 0.0F;
    const float scale = norm.scale[row];
    for (int i = 0; i < W; ++i) {
      sums[0][i] += widened(d.at[i]) * (widened(x.at[i]) - mean) * scale;
      if (kLayer) sums[kLayer ? 1 : 0][i] += widened(d.at[i]);
    }
  }
};

template <class E, int W, bool kLayer>
cudaError_t backward_weight(const Norm<E>& norm, const NormGradients<E>& gradients, cudaStream_t stream) {
  const NormTerms<E, W, kLayer> terms{norm, gradients.d_y};
  constexpr int kSums = kLayer ? 2 : 1;
  return add_column_sums<kSums, W>(terms, norm.rows, norm.width, gradients.partials, gradients.d_weight,
                                   gradients.d_bias, stream);
}

}  // namespace

std::size_t norm_partials(std::size_t rows, std::size_t width) {
  return column_partials(2, rows, width);
}

template <class E>
cudaError_t norm_forward(const Norm<E>& norm, E* y, cudaStream_t stream) {
  const LaunchShape shape = shape_of(norm);
  const bool is_wide = norm.width % kWide<E> == 0;
  if (norm.mean != nullptr) {
    return is_wide ? launch(norm_forward_kernel<E, kWide<E>, true>, shape, stream, norm, y)
                   : launch(norm_forward_kernel<E, 1, true>, shape, stream, norm, y);
  }
  return is_wide ? launch(norm_forward_kernel<E, kWide<E>, false>, shape, stream, norm, y)
                 : launch(norm_forward_kernel<E, 1, false>, shape, stream, norm, y);
}

template <class E>
cudaError_t norm_backward_weight(const Norm<E>& norm, const NormGradients<E>& gradients,
                                 cudaStream_t stream) {
  const bool is_wide = norm.width % kWide<E> == 0;
  if (norm.mean != nullptr) {
    return is_wide ? backward_weight<E, kWide<E>, true>(norm, gradients, stream)
                   : backward_weight<E, 1, true>(norm, gradients, stream);
  }
  return is_wide ? backward_weight<E, kWide<E>, false>(norm, gradients, stream)
                 : backward_weight<E, 1, false>(norm, gradients, stream);
}

template <class E>
cudaError_t norm_backward_input(const Norm<E>& norm, const E* d_y, E* d_x, Write write, cudaStream_t stream) {
  const LaunchShape shape = shape_of(norm);
  const bool is_wide = norm.width % kWide<E> == 0;
  if (norm.mean != nullptr) {
    return is_wide ? launch(norm_backward_kernel<E, kWide<E>, true>, shape, stream, norm, d_y, d_x, write)
                   : launch(norm_backward_kernel<E, 1, true>, shape, stream, norm, d_y, d_x, write);
  }
  return is_wide ? launch(norm_backward_kernel<E, kWide<E>, false>, shape, stream, norm, d_y, d_x, write)
                 : launch(norm_backward_kernel<E, 1, false>, shape, stream, norm, d_y, d_x, write);
}

template cudaError_t norm_forward<float>(const Norm<float>&, float*, cudaStream_t);
template cudaError_t norm_forward<Bf16>(const Norm<Bf16>&, Bf16*, cudaStream_t);
template cudaError_t norm_backward_weight<float>(const Norm<float>&, const NormGradients<float>&,
                                                 cudaStream_t);
template cudaError_t norm_backward_weight<Bf16>(const Norm<Bf16>&, const NormGradients<Bf16>&, cudaStream_t);
template cudaError_t norm_backward_input<float>(const Norm<float>&, const float*, float*, Write,
                                                cudaStream_t);
template cudaError_t norm_backward_input<Bf16>(const Norm<Bf16>&, const Bf16*, Bf16*, Write, cudaStream_t);

}  // namespace troupe::apps::gpt::cuda
