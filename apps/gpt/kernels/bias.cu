#include "apps/gpt/kernels/column_sums.cuh"
#include "apps/gpt/kernels/kernels.hpp"

namespace troupe::apps::gpt::cuda {
namespace {

constexpr unsigned kThreads = 256;

// A block row has kRowsOfBlock rows; each thread has a pack of their columns.
constexpr unsigned kRowsOfBlock = 16;

template <class E, int W>
__global__ void bias_forward_kernel(std::size_t rows, std::size_t width, const E* bias, E* y) {
  const std::size_t c = (std::size_t{blockIdx.y} * kThreads + threadIdx.x) * W;
  if (c >= width) return;
  float added[W];
  for (int i = 0; i < W; ++i) added[i] = widened(bias[c + i]);
  const std::size_t begin = std::size_t{blockIdx.x} * kRowsOfBlock;
  const std::size_t end = begin + kRowsOfBlock < rows ? begin + kRowsOfBlock : rows;
  for (std::size_t row = begin; row < end; ++row) {
    auto pack = load<E, W>(y + row * width + c);
    for (int i = 0; i < W; ++i) pack.at[i] = narrowed<E>(widened(pack.at[i]) + added[i]);
    store<E, W>(pack, y + row * width + c);
  }
}

template <class E, int W>
struct BiasTerms {
  const E* d_y;
  std::size_t width;

  __device__ void add(std::size_t row, std::size_t c, float (&sums)[1][W]) const {
    const auto d = load<E, W>(d_y + row * width + c);
    for (int i = 0; i < W; ++i) sums[0][i] += widened(d.at[i]);
  }
};

}  // namespace

template <class E>
cudaError_t bias_forward(std::size_t rows, std::size_t width, const E* bias, E* y, cudaStream_t stream) {
  const auto shape = [&](std::size_t of_thread) {
    return LaunchShape{{blocks_for(rows, kRowsOfBlock), blocks_for(width, kThreads * of_thread)}, kThreads};
  };
  constexpr int W = kWide<E>;
  if (width % W == 0) return launch(bias_forward_kernel<E, W>, shape(W), stream, rows, width, bias, y);
  return launch(bias_forward_kernel<E, 1>, shape(1), stream, rows, width, bias, y);
}

template <class E>
cudaError_t bias_backward(std::size_t rows, std::size_t width, const E* d_y, float* partials, float* d_bias,
                          cudaStream_t stream) {
  constexpr int W = kWide<E>;
  if (width % W == 0) {
    return add_column_sums<1, W>(BiasTerms<E, W>{d_y, width}, rows, width, partials, d_bias, nullptr, stream);
  }
  return add_column_sums<1, 1>(BiasTerms<E, 1>{d_y, width}, rows, width, partials, d_bias, nullptr, stream);
}

template cudaError_t bias_forward<float>(std::size_t, std::size_t, const float*, float*, cudaStream_t);
template cudaError_t bias_forward<Bf16>(std::size_t, std::size_t, const Bf16*, Bf16*, cudaStream_t);
template cudaError_t bias_backward<float>(std::size_t, std::size_t, const float*, float*, float*,
                                          cudaStream_t);
template cudaError_t bias_backward<Bf16>(std::size_t, std::size_t, const Bf16*, float*, float*, cudaStream_t);

}  // namespace troupe::apps::gpt::cuda
