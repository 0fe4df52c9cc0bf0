#include "apps/gpt/layers/cross_entropy.hpp"

#include <algorithm>
#include <cmath>

#include "apps/gpt/layers/vector_math.hpp"

namespace troupe::apps::gpt {

std::size_t learned_rows(std::span<const std::int32_t> targets) {
  return targets.size() - static_cast<std::size_t>(std::count(targets.begin(), targets.end(), kNoTarget));
}

std::size_t loss_divisor(std::span<const std::int32_t> targets, std::optional<std::size_t> divisor) {
  return divisor ? *divisor : std::max<std::size_t>(learned_rows(targets), 1);
}

template <class T>
double cross_entropy_forward(std::span<const std::int32_t> targets, std::size_t vocabulary, T* logits,
                             std::optional<std::size_t> divisor) {
  double loss = 0;
  for (std::size_t n = 0; n < targets.size(); ++n) {
    if (targets[n] == kNoTarget) continue;
    T* row = logits + n * vocabulary;
    const T most = largest(vocabulary, row);
    const T target = row[targets[n]] - most;
    vectorised([=]() __attribute__((always_inline)) {
      for (std::size_t v = 0; v < vocabulary; ++v) row[v] = exponential(row[v] - most);
    });
    const T sum = ordered_sum<T>(vocabulary, [=](std::size_t v) { return row[v]; });
    loss += std::log(static_cast<double>(sum)) - static_cast<double>(target);
    const T inverse = T{1} / sum;
    for (std::size_t v = 0; v < vocabulary; ++v) row[v] *= inverse;
  }
  return loss / static_cast<double>(loss_divisor(targets, divisor));
}

template <class T>
void cross_entropy_backward(std::span<const std::int32_t> targets, std::size_t vocabulary, T* probabilities,
                            T scale, std::optional<std::size_t> divisor) {
  const T share = scale / static_cast<T>(loss_divisor(targets, divisor));
  for (std::size_t n = 0; n < targets.size(); ++n) {
    T* row = probabilities + n * vocabulary;
    if (targets[n] == kNoTarget) {
      std::fill_n(row, vocabulary, T{0});
      continue;
    }
    row[targets[n]] -= T{1};
    for (std::size_t v = 0; v < vocabulary; ++v) row[v] *= share;
  }
}

template double cross_entropy_forward<float>(std::span<const std::int32_t>, std::size_t, float*,
                                             std::optional<std::size_t>);
template double cross_entropy_forward<double>(std::span<const std::int32_t>, std::size_t, double*,
                                              std::optional<std::size_t>);
template void cross_entropy_backward<float>(std::span<const std::int32_t>, std::size_t, float*, float,
                                            std::optional<std::size_t>);
template void cross_entropy_backward<double>(std::span<const std::int32_t>, std::size_t, double*, double,
                                             std::optional<std::size_t>);

}  // namespace troupe::apps::gpt
