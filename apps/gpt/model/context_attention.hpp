#pragma once

#include <cstddef>

#include "apps/gpt/layers/attention.hpp"
#include "apps/gpt/layers/rotary.hpp"
#include "apps/gpt/model/activations.hpp"
#include "apps/gpt/model/group.hpp"
#include "apps/gpt/model/sequence_part.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

// B batch, T tokens of whole sequences, N members, L = T / N rows of a sequence that a member keeps, H heads,
// K heads with keys of their own, D head size.

/// What a member's attention, and routers of E experts, have besides its own rows; all blocks share it.
template <class T>
struct ContextParallel {
  TensorGroup<T>* group;
  T* key;        ///< (B, T, K, D), of all members, by position
  T* value;      ///< as above
  T* d_key;      ///< (B, T, K, D): what this member adds to the gradients
  T* d_value;    ///< as above
  T* exchanged;  ///< (N, B, L, K D or E): in the layout that members exchange
  T* logits;     ///< (B, T, E) of routers, of all members, by position
};

/// The angles of the positions that a member keeps, L of each sequence; of all positions if it is the only
/// member.
template <class T>
Rotary<T> rotary_of(const ModelConfig& config, std::size_t length, const SequenceMember& member);

/// For sequences of T tokens; the caller sets the group.
template <class T>
ContextParallel<T> carve_context(Carver<T>& carver, std::size_t batch, std::size_t length,
                                 const ModelConfig& config);

/// As attention_forward(), if each member has L rows of each sequence, `attention.shape.length`, and sees the
/// keys and values of all: query and y are (B, L, H, D), key and value (B, L, K, D), probabilities (B, H, L,
/// T).
template <class T>
core::Result<void> context_attention_forward(const ContextParallel<T>& context, const Attention<T>& attention,
                                             T* y);

/// As attention_backward(); the gradients with respect to keys and values are the sums over the members.
/// gradients.scratch is (L, T).
template <class T>
core::Result<void> context_attention_backward(const ContextParallel<T>& context,
                                              const Attention<T>& attention, const T* d_y,
                                              const AttentionGradients<T>& gradients);

}  // namespace troupe::apps::gpt
