#include <algorithm>

#include "apps/gpt/kernels/kernels.hpp"
#include "apps/gpt/kernels/launch.hpp"
#include "apps/gpt/kernels/reduce.cuh"
#include "apps/gpt/layers/cross_entropy.hpp"

namespace troupe::apps::gpt::cuda {
namespace {

constexpr unsigned kThreads = 256;

// For a row, which one block handles.
template <class E, int W>
__device__ inline float greatest(const E* logits, std::size_t V) {
  float most = -INFINITY;
  for (std::size_t v = threadIdx.x * W; v < V; v += kThreads * W) {
    const auto pack = load<E, W>(logits + v);
    for (int i = 0; i < W; ++i) most = fmaxf(most, widened(pack.at[i]));
  }
  return block_max<kThreads>(most);
}

template <class E, int W>
__device__ inline float sum_of_exponentials(const E* logits, std::size_t V, float most) {
  float sum = 0;
  for (std::size_t v = threadIdx.x * W; v < V; v += kThreads * W) {
    const auto pack = load<E, W>(logits + v);
    for (int i = 0; i < W; ++i) sum += expf(widened(pack.at[i]) - most);
  }
  return block_sum<kThreads>(sum);
}

template <class E, int W>
__global__ void row_losses_kernel(CrossEntropy<E> entropy) {
  const std::size_t row = blockIdx.x, V = entropy.vocabulary;
  const E* logits = entropy.logits + row * V;
  if (entropy.targets[row] == kNoTarget) {
    if (threadIdx.x == 0) entropy.losses[row] = 0;
    return;
  }
  const float most = greatest<E, W>(logits, V);
  const float sum = sum_of_exponentials<E, W>(logits, V, most);
  if (threadIdx.x != 0) return;
  const float log_sum = most + logf(sum);
  entropy.log_sum[row] = log_sum;
  entropy.losses[row] = log_sum - widened(logits[entropy.targets[row]]);
}

// Rows that are not learned contribute zeros to the sums over ranks.
template <class E, int W>
__global__ void row_greatest_kernel(CrossEntropy<E> entropy, VocabularySums to) {
  const std::size_t row = blockIdx.x, V = entropy.vocabulary;
  const bool is_learned = entropy.targets[row] != kNoTarget;
  const float most = is_learned ? greatest<E, W>(entropy.logits + row * V, V) : 0;
  if (threadIdx.x == 0) to.most[row] = most;
}

template <class E, int W>
__global__ void row_sums_kernel(CrossEntropy<E> entropy, VocabularySums to) {
  const std::size_t row = blockIdx.x, V = entropy.vocabulary;
  const E* logits = entropy.logits + row * V;
  const std::int32_t target = entropy.targets[row];
  const float most = to.most[row];
  const float sum = target == kNoTarget ? 0 : sum_of_exponentials<E, W>(logits, V, most);
  if (threadIdx.x != 0) return;
  to.sums[row] = sum;
  to.sums[entropy.rows + row] = target < 0 ? 0 : widened(logits[target]) - most;
}

template <class E>
__global__ void summed_losses_kernel(CrossEntropy<E> entropy, VocabularySums from) {
  const std::size_t row = std::size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= entropy.rows) return;
  if (entropy.targets[row] == kNoTarget) {
    entropy.losses[row] = 0;
    return;
  }
  const float below = logf(from.sums[row]);
  entropy.log_sum[row] = from.most[row] + below;
  entropy.losses[row] = below - from.sums[entropy.rows + row];
}

// Rows that are not learned have no loss.
__global__ void quotient_kernel(std::size_t count, const float* values, std::size_t divisor, double* loss) {
  double sum = 0;
  for (std::size_t i = threadIdx.x; i < count; i += kThreads) sum += static_cast<double>(values[i]);
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) *loss = sum / static_cast<double>(divisor);
}

template <class E, int W>
__global__ void logit_gradients_kernel(CrossEntropy<E> entropy) {
  const std::size_t row = blockIdx.x, V = entropy.vocabulary;
  E* logits = entropy.logits + row * V;
  const float log_sum = entropy.log_sum[row];
  if (entropy.targets[row] == kNoTarget) {
    for (std::size_t v = threadIdx.x * W; v < V; v += kThreads * W) store<E, W>(Pack<E, W>{}, logits + v);
    return;
  }
  const float share = entropy.scale / static_cast<float>(entropy.divisor);
  const auto target = static_cast<std::size_t>(entropy.targets[row]);
  for (std::size_t v = threadIdx.x * W; v < V; v += kThreads * W) {
    auto pack = load<E, W>(logits + v);
    for (int i = 0; i < W; ++i) {
      const float probability = expf(widened(pack.at[i]) - log_sum);
      pack.at[i] = narrowed<E>((v + i == target ? probability - 1.0F : probability) * share);
    }
    store<E, W>(pack, logits + v);
  }
}

}  // namespace

template <class E>
cudaError_t cross_entropy_forward(const CrossEntropy<E>& entropy, double* loss, cudaStream_t stream) {
  const LaunchShape rows{static_cast<unsigned>(entropy.rows), kThreads};
  const bool is_wide = entropy.vocabulary % kWide<E> == 0;
  const cudaError_t status = is_wide ? launch(row_losses_kernel<E, kWide<E>>, rows, stream, entropy)
                                     : launch(row_losses_kernel<E, 1>, rows, stream, entropy);
  if (status != cudaSuccess) return status;
  return launch(quotient_kernel, {1, kThreads}, stream, entropy.rows, entropy.losses, entropy.divisor, loss);
}

template <class E>
cudaError_t cross_entropy_backward(const CrossEntropy<E>& entropy, cudaStream_t stream) {
  const LaunchShape rows{static_cast<unsigned>(entropy.rows), kThreads};
  const bool is_wide = entropy.vocabulary % kWide<E> == 0;
  return is_wide ? launch(logit_gradients_kernel<E, kWide<E>>, rows, stream, entropy)
                 : launch(logit_gradients_kernel<E, 1>, rows, stream, entropy);
}

template <class E>
cudaError_t vocabulary_greatest(const CrossEntropy<E>& entropy, const VocabularySums& to,
                                cudaStream_t stream) {
  const LaunchShape rows{static_cast<unsigned>(entropy.rows), kThreads};
  const bool is_wide = entropy.vocabulary % kWide<E> == 0;
  return is_wide ? launch(row_greatest_kernel<E, kWide<E>>, rows, stream, entropy, to)
                 : launch(row_greatest_kernel<E, 1>, rows, stream, entropy, to);
}

template <class E>
cudaError_t vocabulary_sums(const CrossEntropy<E>& entropy, const VocabularySums& to, cudaStream_t stream) {
  const LaunchShape rows{static_cast<unsigned>(entropy.rows), kThreads};
  const bool is_wide = entropy.vocabulary % kWide<E> == 0;
  return is_wide ? launch(row_sums_kernel<E, kWide<E>>, rows, stream, entropy, to)
                 : launch(row_sums_kernel<E, 1>, rows, stream, entropy, to);
}

template <class E>
cudaError_t vocabulary_losses(const CrossEntropy<E>& entropy, const VocabularySums& from, double* loss,
                              cudaStream_t stream) {
  const cudaError_t status =
      launch(summed_losses_kernel<E>, {blocks_for(entropy.rows, kThreads), kThreads}, stream, entropy, from);
  if (status != cudaSuccess) return status;
  return launch(quotient_kernel, {1, kThreads}, stream, entropy.rows, entropy.losses, entropy.divisor, loss);
}

template cudaError_t cross_entropy_forward<float>(const CrossEntropy<float>&, double*, cudaStream_t);
template cudaError_t cross_entropy_forward<Bf16>(const CrossEntropy<Bf16>&, double*, cudaStream_t);
template cudaError_t cross_entropy_backward<float>(const CrossEntropy<float>&, cudaStream_t);
template cudaError_t cross_entropy_backward<Bf16>(const CrossEntropy<Bf16>&, cudaStream_t);
template cudaError_t vocabulary_greatest<float>(const CrossEntropy<float>&, const VocabularySums&,
                                                cudaStream_t);
template cudaError_t vocabulary_greatest<Bf16>(const CrossEntropy<Bf16>&, const VocabularySums&,
                                               cudaStream_t);
template cudaError_t vocabulary_sums<float>(const CrossEntropy<float>&, const VocabularySums&, cudaStream_t);
template cudaError_t vocabulary_sums<Bf16>(const CrossEntropy<Bf16>&, const VocabularySums&, cudaStream_t);
template cudaError_t vocabulary_losses<float>(const CrossEntropy<float>&, const VocabularySums&, double*,
                                              cudaStream_t);
template cudaError_t vocabulary_losses<Bf16>(const CrossEntropy<Bf16>&, const VocabularySums&, double*,
                                             cudaStream_t);

}  // namespace troupe::apps::gpt::cuda
