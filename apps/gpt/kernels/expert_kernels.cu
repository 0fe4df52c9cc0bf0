#include "apps/gpt/kernels/expert_kernels.hpp"

#include "apps/gpt/kernels/launch.hpp"
#include "apps/gpt/kernels/reduce.cuh"

namespace troupe::apps::gpt::cuda {
namespace {

constexpr unsigned kThreads = 256;
// A warp has a row.
constexpr unsigned kRowsOfBlock = kThreads / kWarp;

__device__ inline std::size_t row_of_warp() {
  return std::size_t{blockIdx.x} * kRowsOfBlock + threadIdx.x / kWarp;
}

template <int W>
__device__ inline std::size_t first_column() {
  return std::size_t{threadIdx.x % kWarp} * W;
}

__device__ inline float sigmoid_of(float x) {
  return 1.0F / (1.0F + expf(-x));
}

template <class E, int W>
__global__ void gather_tokens_kernel(ExpertPlaces places, const E* tokens, E* slots) {
  const std::size_t slot = row_of_warp(), C = places.width;
  if (slot >= places.slots) return;
  const std::size_t token = static_cast<std::size_t>(places.choice_of_slot[slot]) / places.choices;
  for (std::size_t c = first_column<W>(); c < C; c += kWarp * W)
    store<E, W>(load<E, W>(tokens + token * C + c), slots + slot * C + c);
}

// A token's sum starts with its best choice.
template <class E, int W>
__global__ void combine_kernel(ExpertPlaces places, const float* weights, const E* slots, E* tokens) {
  const std::size_t token = row_of_warp(), C = places.width;
  if (token >= places.tokens) return;
  for (std::size_t c = first_column<W>(); c < C; c += kWarp * W) {
    auto pack = load<E, W>(tokens + token * C + c);
    float sums[W];
    for (int i = 0; i < W; ++i) sums[i] = widened(pack.at[i]);
    for (std::size_t choice = token * places.choices; choice < (token + 1) * places.choices; ++choice) {
      const std::int32_t slot = places.slot_of_choice[choice];
      if (slot < 0) continue;
      const float weight = weights == nullptr ? 1.0F : weights[choice];
      const auto row = load<E, W>(slots + static_cast<std::size_t>(slot) * C + c);
      for (int i = 0; i < W; ++i) sums[i] += weight * widened(row.at[i]);
    }
    for (int i = 0; i < W; ++i) pack.at[i] = narrowed<E>(sums[i]);
    store<E, W>(pack, tokens + token * C + c);
  }
}

// A warp has a choice.
template <class E, int W>
__global__ void combine_backward_kernel(ExpertPlaces places, const float* weights, const E* slots,
                                        CombineGradients<E> gradients) {
  const std::size_t choice = row_of_warp(), C = places.width;
  if (choice >= places.tokens * places.choices) return;
  const std::int32_t slot = places.slot_of_choice[choice];
  float product = 0;
  if (slot >= 0) {
    const E* output = slots + static_cast<std::size_t>(slot) * C;
    const E* d_token = gradients.d_tokens + choice / places.choices * C;
    E* d_slot = gradients.d_slots + static_cast<std::size_t>(slot) * C;
    const float weight = weights[choice];
    for (std::size_t c = first_column<W>(); c < C; c += kWarp * W) {
      auto d = load<E, W>(d_token + c);
      const auto row = load<E, W>(output + c);
      for (int i = 0; i < W; ++i) {
        product += widened(row.at[i]) * widened(d.at[i]);
        d.at[i] = narrowed<E>(weight * widened(d.at[i]));
      }
      store<E, W>(d, d_slot + c);
    }
  }
  product = warp_sum(product);
  if (threadIdx.x % kWarp == 0) gradients.d_weights[choice] = product;
}

template <class E, int W>
__global__ void add_shared_kernel(std::size_t rows, std::size_t C, const E* gate, const E* output,
                                  E* tokens) {
  const std::size_t row = row_of_warp();
  if (row >= rows) return;
  const float share = gate == nullptr ? 1.0F : sigmoid_of(widened(gate[row]));
  for (std::size_t c = row * C + first_column<W>(); c < (row + 1) * C; c += kWarp * W) {
    auto pack = load<E, W>(tokens + c);
    const auto added = load<E, W>(output + c);
    for (int i = 0; i < W; ++i) pack.at[i] = narrowed<E>(widened(pack.at[i]) + share * widened(added.at[i]));
    store<E, W>(pack, tokens + c);
  }
}

template <class E, int W>
__global__ void shared_backward_kernel(std::size_t rows, std::size_t C, const E* gate, const E* output,
                                       const E* d_tokens, E* d_output, E* d_gate) {
  const std::size_t row = row_of_warp();
  if (row >= rows) return;
  const float share = sigmoid_of(widened(gate[row]));
  float product = 0;
  for (std::size_t c = row * C + first_column<W>(); c < (row + 1) * C; c += kWarp * W) {
    auto d = load<E, W>(d_tokens + c);
    const auto made = load<E, W>(output + c);
    for (int i = 0; i < W; ++i) {
      product += widened(made.at[i]) * widened(d.at[i]);
      d.at[i] = narrowed<E>(share * widened(d.at[i]));
    }
    store<E, W>(d, d_output + c);
  }
  product = warp_sum(product);
  if (threadIdx.x % kWarp == 0) d_gate[row] = narrowed<E>(product * share * (1.0F - share));
}

LaunchShape rows_of(std::size_t rows) {
  return {blocks_for(rows, kRowsOfBlock), kThreads};
}

}  // namespace

// Widths are multiples of a wide load: the model refuses others.

template <class E>
cudaError_t gather_tokens(const ExpertPlaces& places, const E* tokens, E* slots, cudaStream_t stream) {
  if (places.slots == 0) return cudaSuccess;
  return launch(gather_tokens_kernel<E, kWide<E>>, rows_of(places.slots), stream, places, tokens, slots);
}

template <class E>
cudaError_t combine(const ExpertPlaces& places, const float* weights, const E* slots, E* tokens,
                    cudaStream_t stream) {
  return launch(combine_kernel<E, kWide<E>>, rows_of(places.tokens), stream, places, weights, slots, tokens);
}

template <class E>
cudaError_t combine_backward(const ExpertPlaces& places, const float* weights, const E* slots,
                             const CombineGradients<E>& gradients, cudaStream_t stream) {
  return launch(combine_backward_kernel<E, kWide<E>>, rows_of(places.tokens * places.choices), stream, places,
                weights, slots, gradients);
}

template <class E>
cudaError_t add_shared(std::size_t rows, std::size_t width, const E* gate, const E* output, E* tokens,
                       cudaStream_t stream) {
  return launch(add_shared_kernel<E, kWide<E>>, rows_of(rows), stream, rows, width, gate, output, tokens);
}

template <class E>
cudaError_t shared_backward(std::size_t rows, std::size_t width, const E* gate, const E* output,
                            const E* d_tokens, E* d_output, E* d_gate, cudaStream_t stream) {
  return launch(shared_backward_kernel<E, kWide<E>>, rows_of(rows), stream, rows, width, gate, output,
                d_tokens, d_output, d_gate);
}

template cudaError_t gather_tokens<float>(const ExpertPlaces&, const float*, float*, cudaStream_t);
template cudaError_t gather_tokens<Bf16>(const ExpertPlaces&, const Bf16*, Bf16*, cudaStream_t);
template cudaError_t combine<float>(const ExpertPlaces&, const float*, const float*, float*, cudaStream_t);
template cudaError_t combine<Bf16>(const ExpertPlaces&, const float*, const Bf16*, Bf16*, cudaStream_t);
template cudaError_t combine_backward<float>(const ExpertPlaces&, const float*, const float*,
                                             const CombineGradients<float>&, cudaStream_t);
template cudaError_t combine_backward<Bf16>(const ExpertPlaces&, const float*, const Bf16*,
                                            const CombineGradients<Bf16>&, cudaStream_t);
template cudaError_t add_shared<float>(std::size_t, std::size_t, const float*, const float*, float*,
                                       cudaStream_t);
template cudaError_t add_shared<Bf16>(std::size_t, std::size_t, const Bf16*, const Bf16*, Bf16*,
                                      cudaStream_t);
template cudaError_t shared_backward<float>(std::size_t, std::size_t, const float*, const float*,
                                            const float*, float*, float*, cudaStream_t);
template cudaError_t shared_backward<Bf16>(std::size_t, std::size_t, const Bf16*, const Bf16*, const Bf16*,
                                           Bf16*, Bf16*, cudaStream_t);

}  // namespace troupe::apps::gpt::cuda
