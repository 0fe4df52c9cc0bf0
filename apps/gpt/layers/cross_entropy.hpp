#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace troupe::apps::gpt {

// N rows, V vocabulary.

/// The target of a row that is not learned: it has no loss and no gradient, and does not count in a mean.
inline constexpr std::int32_t kNoTarget = -1;
std::size_t learned_rows(std::span<const std::int32_t> targets);

/// Sum over the rows of -log softmax(logits)[target], in nats, in double, divided by `divisor`, or by the
/// number of learned rows: then it is their mean, or 0 if there are none. logits is (N, V), and holds the
/// probabilities afterwards. Targets must be in 0..V-1, or kNoTarget.
template <class T>
double cross_entropy_forward(std::span<const std::int32_t> targets, std::size_t vocabulary, T* logits,
                             std::optional<std::size_t> divisor = {});

/// Turns the probabilities left by forward into `scale` times the gradient of what it returned with respect
/// to the logits, in place.
template <class T>
void cross_entropy_backward(std::span<const std::int32_t> targets, std::size_t vocabulary, T* probabilities,
                            T scale = 1, std::optional<std::size_t> divisor = {});

/// What both divide by.
std::size_t loss_divisor(std::span<const std::int32_t> targets, std::optional<std::size_t> divisor);

}  // namespace troupe::apps::gpt
