#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace troupe::apps::gpt {

// N rows, V vocabulary.

/// Of a row that is not learned: it has no loss and no gradient, and does not count for the mean.
inline constexpr std::int32_t kNoTarget = -1;
std::size_t learned_rows(std::span<const std::int32_t> targets);

/// Mean over the rows of -log softmax(logits)[target], in nats; summed in double. logits is (N, V), and holds
/// the probabilities afterwards. Targets must lie in 0..V-1, or be kNoTarget; 0 when all are that.
template <class T>
double cross_entropy_forward(std::span<const std::int32_t> targets, std::size_t vocabulary, T* logits);

/// Turns the probabilities which forward left into `scale` times the gradient of that mean by the logits, in
/// place.
template <class T>
void cross_entropy_backward(std::span<const std::int32_t> targets, std::size_t vocabulary, T* probabilities,
                            T scale = 1);

}  // namespace troupe::apps::gpt
