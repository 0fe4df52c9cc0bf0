#pragma once

#include <algorithm>
#include <cstddef>

#include "apps/gpt/layers/attention.hpp"
#include "apps/gpt/layers/pieces.hpp"
#include "apps/gpt/layers/rotary.hpp"
#include "apps/gpt/model/block_context.hpp"
#include "apps/gpt/model/sequence_part.hpp"
#include "core/errors.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

// B batch, T tokens of whole sequences, N members, L = T / N rows of a sequence that a member keeps, H heads,
// K heads with keys of their own, D head size, W elements of a row.

/// What a member's attention, and routers of experts, have besides its own rows; all blocks share it.
template <class X>
struct ContextParallel {
  using E = typename X::Element;

  typename X::Group* group = nullptr;
  E* key = nullptr;                ///< (B, T, K, D), of all members, by position
  E* value = nullptr;              ///< as above
  E* d_key = nullptr;              ///< (B, T, K, D): what this member adds to the gradients
  E* d_value = nullptr;            ///< as above
  std::byte* exchanged = nullptr;  ///< (N, B, L, K D), or logits, in the layout that members exchange
  SumOf<E>* logits = nullptr;      ///< (B, T, experts) of routers, of all members, by position
};

/// For a member's `rows` of all sequences; the caller sets the group.
template <class X>
ContextParallel<X> carve_sequences(Carver& carver, std::size_t members, std::size_t rows,
                                   const ModelConfig& config) {
  using E = typename X::Element;
  const std::size_t all = members * rows, keys = config.key_width(), experts = config.experts.count;
  ContextParallel<X> sequences;
  for (E** tensor : {&sequences.key, &sequences.value, &sequences.d_key, &sequences.d_value})
    *tensor = carver.take<E>(all, keys);
  sequences.exchanged = carver.take<std::byte>(all, std::max(keys * sizeof(E), experts * sizeof(SumOf<E>)));
  if (experts > 0) sequences.logits = carver.take<SumOf<E>>(all, experts);
  return sequences;
}

/// The angles of the positions that a member keeps, L of each sequence; of all positions if it is the only
/// member.
template <class T>
Rotary<T> rotary_of(const ModelConfig& config, std::size_t length, const SequenceMember& member) {
  const auto& [members, index] = member;
  if (members == 1)
    return Rotary<T>(config.context, config.head_size(), config.rope_base, config.rope_scaling);
  const auto positions = positions_of_member(length * members, members, index);
  return Rotary<T>(positions, config.context, config.head_size(), config.rope_base, config.rope_scaling);
}

/// Rows of W elements of V that the members keep.
template <class X>
PieceRows piece_rows(const BlockContext<X>& context, std::size_t width) {
  return {context.sequences->group->size(), context.shape.batch, context.shape.length, width};
}

inline std::vector<std::size_t> counts_of(const PieceRows& rows) {
  return std::vector<std::size_t>(rows.members, rows.batch * rows.length * rows.width);
}

/// all (B, T, W) = the rows of all members, by position, from each member's own (B, L, W).
template <class X, class V>
core::Result<void> gather_pieces(const BlockContext<X>& context, std::size_t width, const V* own, V* all) {
  const auto rows = piece_rows(context, width);
  V* exchanged = reinterpret_cast<V*>(context.sequences->exchanged);
  TRY(context.engine.gather(*context.sequences->group, own, exchanged, counts_of(rows)));
  context.engine.rows_by_position(rows, static_cast<const V*>(exchanged), all);
  return {};
}

/// own (B, L, K, D) = the sum over all members of their values at its positions in d_all (B, T, K, D).
/// `scratch` has the same size.
template <class X>
core::Result<void> scatter_pieces(const BlockContext<X>& context, const typename X::Element* d_all,
                                  typename X::Element* own, typename X::Element* scratch) {
  using E = typename X::Element;
  const auto rows = piece_rows(context, context.config.key_width());
  const auto counts = counts_of(rows);
  E* exchanged = reinterpret_cast<E*>(context.sequences->exchanged);
  context.engine.rows_by_member(rows, d_all, exchanged);
  return context.engine.scatter_sum(
      *context.sequences->group,
      {reinterpret_cast<std::byte*>(scratch), rows.members * counts.front() * sizeof(E)}, exchanged, own,
      counts);
}

/// The block's, with the keys and values of all members if ranks share each sequence.
template <class X>
core::Result<Attention<typename X::Element, SumOf<typename X::Element>>> attention_of(
    const BlockContext<X>& context, const BlockActivations<typename X::Element>& block) {
  const auto& [batch, length] = context.shape;
  const ModelConfig& config = context.config;
  Attention<typename X::Element, SumOf<typename X::Element>> attention{
      {batch, length, config.heads, config.head_size(), config.key_heads()},
      block.query,
      block.key,
      block.value,
      block.scores};
  if (context.sequences == nullptr) return attention;
  const auto& sequences = *context.sequences;
  const std::size_t members = sequences.group->size(), index = sequences.group->index(), piece = length / 2;
  attention.rows = {
      .positions = members * length, .lower = index * piece, .upper = (2 * members - 1 - index) * piece};
  TRY(gather_pieces(context, config.key_width(), attention.key, sequences.key));
  TRY(gather_pieces(context, config.key_width(), attention.value, sequences.value));
  attention.key = sequences.key;
  attention.value = sequences.value;
  return attention;
}

/// block.attention and block.scores, from its queries, keys and values.
template <class X>
core::Result<void> attend(const BlockContext<X>& context,
                          const BlockActivations<typename X::Element>& block) {
  context.engine.attention_forward(TRY(attention_of(context, block)), block.attention);
  return {};
}

/// From scratch.attention the gradients with respect to queries, keys and values; if ranks share each
/// sequence, those with respect to keys and values are the sums over the ranks.
template <class X>
core::Result<void> attend_backward(const BlockContext<X>& context,
                                   const BlockActivations<typename X::Element>& block,
                                   const GradientScratch<typename X::Element>& d) {
  using E = typename X::Element;
  const auto* sequences = context.sequences;
  const auto attention = TRY(attention_of(context, block));
  AttentionGradients<E, SumOf<E>> gradients{d.query, d.key, d.value, d.scores};
  if (sequences != nullptr) {
    gradients.key = sequences->d_key;
    gradients.value = sequences->d_value;
  }
  context.engine.attention_backward(attention, block.attention, static_cast<const E*>(d.attention),
                                    gradients);
  if (sequences == nullptr) return {};
  // Backward has read the keys and values of all members.
  TRY(scatter_pieces(context, sequences->d_key, d.key, sequences->key));
  return scatter_pieces(context, sequences->d_value, d.value, sequences->value);
}

}  // namespace troupe::apps::gpt
