#include <cmath>

#include "apps/gpt/kernels/expert_kernels.hpp"
#include "apps/gpt/kernels/launch.hpp"
#include "apps/gpt/kernels/reduce.cuh"

namespace troupe::apps::gpt::cuda {
namespace {

constexpr unsigned kThreads = 128;
constexpr unsigned kRowsOfBlock = kThreads / kWarp;

/// What is written for one row by a warp, of which each lane has every 32nd expert and every 32nd choice.
class Row {
 public:
  __device__ Row(const RouterGradients& of, std::size_t row)
      : of_(of),
        lane_(threadIdx.x % kWarp),
        logits_(of.logits + row * of.experts),
        chosen_(of.chosen + row * of.choices),
        d_(of.d_weights + row * of.choices * of.parts) {}

  /// The sums over a row that each expert's gradient needs.
  __device__ void prepare() {
    sum_up_logits();
    if (of_.balance > 0) mean_balance_ = balance_mean();
    gather_weights();
    to_scores();
    if (of_.is_sigmoid) return;
    float mean = 0;
    for (std::size_t k = lane_; k < of_.choices; k += kWarp) mean += score_of_choice(k) * d_[k];
    mean_ = warp_sum(mean);
  }

  __device__ float gradient(std::size_t e) const {
    float d = 0;
    for (std::size_t k = 0; k < of_.choices; ++k) {
      if (static_cast<std::size_t>(chosen_[k]) != e) continue;
      const float score = score_of_choice(k);
      d += of_.is_sigmoid ? d_[k] * score * (1.0F - score) : score * d_[k];
      if (of_.is_softmax_of_chosen) d -= score * mean_;
    }
    const float score = score_of(e);
    if (!of_.is_sigmoid && !of_.is_softmax_of_chosen) d -= score * mean_;
    if (of_.balance > 0) {
      const float own = of_.is_sigmoid ? score * (1.0F - score) / sum_of_sigmoids_ : score;
      d += own * (by_score(e) - mean_balance_);
    }
    if (of_.z > 0) {
      const double factor = of_.z * 2 * log_sum_ / static_cast<double>(of_.rows);
      d += static_cast<float>(factor * exp(static_cast<double>(logits_[e]) - log_sum_));
    }
    return d;
  }

 private:
  __device__ float score_of(std::size_t e) const {
    return of_.is_sigmoid ? 1.0F / (1.0F + expf(-logits_[e])) : expf(logits_[e] - greatest_) / sum_;
  }
  /// A choice's score, before the chosen ones are divided by their sum.
  __device__ float score_of_choice(std::size_t k) const {
    const auto e = static_cast<std::size_t>(chosen_[k]);
    return of_.is_softmax_of_chosen ? expf(logits_[e] - greatest_chosen_) / sum_of_chosen_ : score_of(e);
  }
  /// What the balance loss changes by with an expert's score.
  __device__ float by_score(std::size_t e) const {
    return static_cast<float>(of_.balance * static_cast<double>(of_.counts[e]));
  }

  __device__ void sum_up_logits() {
    float most = -INFINITY;
    for (std::size_t e = lane_; e < of_.experts; e += kWarp) most = fmaxf(most, logits_[e]);
    greatest_ = warp_max(most);
    float sum = 0, sigmoids = 0;
    double exponentials = 0;
    for (std::size_t e = lane_; e < of_.experts; e += kWarp) {
      sum += expf(logits_[e] - greatest_);
      if (of_.is_sigmoid) sigmoids += 1.0F / (1.0F + expf(-logits_[e]));
      if (of_.z > 0) exponentials += exp(static_cast<double>(logits_[e]) - static_cast<double>(greatest_));
    }
    sum_ = warp_sum(sum);
    sum_of_sigmoids_ = warp_sum(sigmoids) + kLeastSum;
    log_sum_ = static_cast<double>(greatest_) + log(warp_sum(exponentials));
    if (!of_.is_softmax_of_chosen) return;
    most = -INFINITY;
    for (std::size_t k = lane_; k < of_.choices; k += kWarp) most = fmaxf(most, logits_[chosen_[k]]);
    greatest_chosen_ = warp_max(most);
    sum = 0;
    for (std::size_t k = lane_; k < of_.choices; k += kWarp)
      sum += expf(logits_[chosen_[k]] - greatest_chosen_);
    sum_of_chosen_ = warp_sum(sum);
  }

  __device__ float balance_mean() const {
    float mean = 0;
    const float sum = of_.is_sigmoid ? sum_of_sigmoids_ : 1.0F;
    for (std::size_t e = lane_; e < of_.experts; e += kWarp) mean += by_score(e) * score_of(e) / sum;
    return warp_sum(mean);
  }

  /// The gradients of a choice's parts, added up in place.
  __device__ void gather_weights() {
    if (of_.parts > 1 && lane_ == 0) {
      for (std::size_t k = 0; k < of_.choices; ++k) {
        float sum = d_[k * of_.parts];
        for (std::size_t part = 1; part < of_.parts; ++part) sum += d_[k * of_.parts + part];
        d_[k] = sum;
      }
    }
    __syncwarp();
  }

  /// From gradients of weights to those of chosen scores, in place.
  __device__ void to_scores() {
    float sum = 0, mean = 0;
    for (std::size_t k = lane_; k < of_.choices; k += kWarp) {
      d_[k] *= of_.scale;
      sum += score_of_choice(k);
    }
    if (of_.is_normalised) {
      sum = warp_sum(sum) + kLeastSum;
      for (std::size_t k = lane_; k < of_.choices; k += kWarp) mean += d_[k] * score_of_choice(k) / sum;
      mean = warp_sum(mean);
      for (std::size_t k = lane_; k < of_.choices; k += kWarp) d_[k] = (d_[k] - mean) / sum;
    }
    __syncwarp();
  }

  static constexpr float kLeastSum = 1e-20F;

  const RouterGradients& of_;
  std::size_t lane_;
  const float* logits_;
  const std::int32_t* chosen_;
  float* d_;
  float greatest_ = 0, sum_ = 1, sum_of_sigmoids_ = 1, greatest_chosen_ = 0, sum_of_chosen_ = 1;
  float mean_ = 0, mean_balance_ = 0;
  double log_sum_ = 0;
};

template <class E>
__global__ void router_backward_kernel(RouterGradients of, E* d_logits) {
  const std::size_t row = std::size_t{blockIdx.x} * kRowsOfBlock + threadIdx.x / kWarp;
  if (row >= of.rows) return;
  Row own(of, row);
  own.prepare();
  for (std::size_t e = threadIdx.x % kWarp; e < of.experts; e += kWarp)
    d_logits[row * of.experts + e] = narrowed<E>(own.gradient(e));
}

}  // namespace

template <class E>
cudaError_t router_backward(const RouterGradients& of, E* d_logits, cudaStream_t stream) {
  if (of.rows == 0) return cudaSuccess;
  return launch(router_backward_kernel<E>, {blocks_for(of.rows, kRowsOfBlock), kThreads}, stream, of,
                d_logits);
}

template cudaError_t router_backward<float>(const RouterGradients&, float*, cudaStream_t);
template cudaError_t router_backward<Bf16>(const RouterGradients&, Bf16*, cudaStream_t);

}  // namespace troupe::apps::gpt::cuda
