#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "apps/gpt/model/group.hpp"

namespace troupe::apps::gpt {

// N rows, C width, P tokens of the vocabulary that a member has: member i has those from i * P on.

/// x[n] = table[tokens[n]] if this member has the token, otherwise 0: a part of the sum over the group. x is
/// (N, C), table (P, C).
template <class T>
void vocabulary_embedding_forward(std::span<const std::int32_t> tokens, std::size_t index, std::size_t part,
                                  std::size_t width, const T* table, T* x);

/// d_table[tokens[n]] += d_x[n] for the tokens that this member has, in the order of n. d_x is (N, C).
template <class T>
void vocabulary_embedding_backward(std::span<const std::int32_t> tokens, std::size_t index, std::size_t part,
                                   std::size_t width, const T* d_x, T* d_table);

/// Sum over the rows of -log softmax(logits)[target], in nats, in double, divided by `divisor`, or by the
/// number of learned rows: then it is their mean, or 0 if there are none. logits is (N, P), with the same P
/// on every member, and holds the probabilities of learned rows afterwards. Targets must be in the
/// vocabulary, or kNoTarget. A row's greatest logit is taken over all members, and its sum of exponentials
/// and its target's logit are summed over them. A member has its tokens in `slices` equal parts, and adds
/// those of each up by themselves. Without a group it is the only member.
template <class T>
core::Result<double> cross_entropy_forward(TensorGroup<T>* group, std::span<const std::int32_t> targets,
                                           std::size_t part, T* logits,
                                           std::optional<std::size_t> divisor = {}, std::size_t slices = 1);

/// Turns the probabilities left by forward into `scale` times the gradient of what it returned with respect
/// to this member's logits, in place; nothing is communicated.
template <class T>
void cross_entropy_backward(std::span<const std::int32_t> targets, std::size_t index, std::size_t part,
                            T* probabilities, T scale = 1, std::optional<std::size_t> divisor = {});

}  // namespace troupe::apps::gpt
