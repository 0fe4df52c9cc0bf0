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

/// As cross_entropy_forward(), for logits (N, P), with the same P on every member: a row's greatest logit is
/// taken over all members, and its sum of exponentials and its target's logit are summed over them. A member
/// has its tokens in `slices` equal parts, and adds those of each up by themselves. Without a group it is the
/// only member.
template <class T>
core::Result<double> vocabulary_cross_entropy_forward(TensorGroup<T>* group,
                                                      std::span<const std::int32_t> targets, std::size_t part,
                                                      T* logits, std::optional<std::size_t> divisor = {},
                                                      std::size_t slices = 1);

/// As cross_entropy_backward(), for this member's part; nothing is communicated.
template <class T>
void vocabulary_cross_entropy_backward(std::span<const std::int32_t> targets, std::size_t index,
                                       std::size_t part, T* probabilities, T scale = 1,
                                       std::optional<std::size_t> divisor = {});

/// What the entropy saves for its backward.
template <class T>
struct VocabularyEntropy {
  std::size_t rows, part;
  const T* logits;   ///< (N, P), never written
  T* probabilities;  ///< (N, P)
  T* mean;           ///< (N): mean of the logits under the probabilities of the whole row
};

/// entropy (N) = -sum p ln p = m + ln Z - mean over the whole vocabulary, in nats, at every member.
template <class T>
core::Result<void> vocabulary_entropy_forward(TensorGroup<T>& group, const VocabularyEntropy<T>& of,
                                              T* entropy);

/// d_logits (N, P) = -p (x - mean) times d_entropy (N), which must be the same on every member; nothing is
/// communicated.
template <class T>
void vocabulary_entropy_backward(const VocabularyEntropy<T>& of, const T* d_entropy, T* d_logits);

}  // namespace troupe::apps::gpt
