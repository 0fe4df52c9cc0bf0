#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace troupe::apps::gpt {

// N rows, V vocabulary.

/// The target of a row that is not learned: it has no loss and no gradient, and does not count in the mean.
inline constexpr std::int32_t kNoTarget = -1;
std::size_t learned_rows(std::span<const std::int32_t> targets);

/// Mean over the rows of -log softmax(logits)[target], in nats; summed in double. logits is (N, V), and holds
/// the probabilities afterwards. Targets must be in 0..V-1, or kNoTarget; the mean is 0 if all are kNoTarget.
template <class T>
double cross_entropy_forward(std::span<const std::int32_t> targets, std::size_t vocabulary, T* logits);

/// Turns the probabilities left by forward into `scale` times the gradient of that mean with respect to the
/// logits, in place.
template <class T>
void cross_entropy_backward(std::span<const std::int32_t> targets, std::size_t vocabulary, T* probabilities,
                            T scale = 1);

}  // namespace troupe::apps::gpt
