#include "apps/gpt/model/context_attention.hpp"

#include <algorithm>
#include <cmath>

#include "apps/gpt/layers/matmul.hpp"
#include "apps/gpt/layers/vector_math.hpp"
#include "apps/gpt/model/sequence_pieces.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

// P = T / 2N positions of a piece.

using core::Result;

namespace {

template <class T>
SequencePieces<T> pieces_of(const ContextParallel<T>& context, const AttentionShape& shape) {
  return {*context.group, context.exchanged, {shape.batch, shape.length}, shape.key_heads * shape.head_size};
}

/// One head's rows of one piece of one sequence, and what they see.
struct PieceOfHead {
  std::size_t rows;   // P
  std::size_t first;  // position of the first row, which sees that many keys and its own
  std::size_t seen;   // keys up to the last row's position
  std::size_t stride, key_stride;
  std::size_t query, key, probabilities;  // where they begin
};

template <class T, class Visit>
void for_each_head(const SequencePieces<T>& pieces, const AttentionShape& shape, std::size_t member,
                   Visit visit) {
  const std::size_t P = pieces.positions(), D = shape.head_size;
  PieceOfHead at{};
  at.rows = P;
  at.stride = shape.heads * D;
  at.key_stride = shape.key_heads * D;
  for (std::size_t b = 0; b < shape.batch; ++b) {
    for (std::size_t h = 0; h < shape.heads; ++h) {
      for (std::size_t half = 0; half < 2; ++half) {
        at.first = pieces.first(member, half);
        at.seen = at.first + P;
        at.query = (b * shape.length + half * P) * at.stride + h * D;
        at.key = b * pieces.length() * at.key_stride + h / (shape.heads / shape.key_heads) * D;
        at.probabilities = ((b * shape.heads + h) * shape.length + half * P) * pieces.length();
        visit(at);
      }
    }
  }
}

// scores (P, seen), rows T apart, to probabilities, in place.
template <class T>
void piece_softmax(const PieceOfHead& at, std::size_t stride, T* scores) {
  for (std::size_t t = 0; t < at.rows; ++t) {
    T* row = scores + t * stride;
    const std::size_t seen = at.first + t + 1;
    const T most = largest(seen, row);
    vectorised([=]() __attribute__((always_inline)) {
      for (std::size_t s = 0; s < seen; ++s) row[s] = exponential(row[s] - most);
    });
    const T inverse = T{1} / ordered_sum<T>(seen, [=](std::size_t s) { return row[s]; });
    for (std::size_t s = 0; s < seen; ++s) row[s] *= inverse;
    std::fill(row + seen, row + at.seen, T{0});
  }
}

// d_probabilities (P, seen) to d_scores, in place; both have rows T apart.
template <class T>
void piece_softmax_backward(const PieceOfHead& at, std::size_t stride, const T* probabilities, T* gradient) {
  for (std::size_t t = 0; t < at.rows; ++t) {
    const T* p = probabilities + t * stride;
    T* d = gradient + t * stride;
    const T dot = ordered_sum<T>(at.first + t + 1, [=](std::size_t s) { return p[s] * d[s]; });
    for (std::size_t s = 0; s < at.seen; ++s) d[s] = p[s] * (d[s] - dot);
  }
}

}  // namespace

template <class T>
Rotary<T> rotary_of(const ModelConfig& config, std::size_t length, const SequenceMember& member) {
  const auto& [members, index] = member;
  if (members == 1)
    return Rotary<T>(config.context, config.head_size(), config.rope_base, config.rope_scaling);
  const auto positions = positions_of_member(length * members, members, index);
  return Rotary<T>(positions, config.context, config.head_size(), config.rope_base, config.rope_scaling);
}

template <class T>
ContextParallel<T> carve_context(Carver<T>& carver, std::size_t batch, std::size_t length,
                                 const ModelConfig& config) {
  const std::size_t rows = batch * length, key_width = config.key_width(), experts = config.experts.count;
  return {.group = nullptr,
          .key = carver.take(rows, key_width),
          .value = carver.take(rows, key_width),
          .d_key = carver.take(rows, key_width),
          .d_value = carver.take(rows, key_width),
          .exchanged = carver.take(rows, std::max(key_width, experts)),
          .logits = experts > 0 ? carver.take(rows, experts) : nullptr};
}

template <class T>
Result<void> context_attention_forward(const ContextParallel<T>& context, const Attention<T>& attention,
                                       T* y) {
  const AttentionShape& shape = attention.shape;
  const auto pieces = pieces_of(context, shape);
  TRY(pieces.gather(attention.key, context.key));
  TRY(pieces.gather(attention.value, context.value));
  const T scale = T{1} / std::sqrt(static_cast<T>(shape.head_size));
  for_each_head(pieces, shape, context.group->index(), [&](const PieceOfHead& at) {
    T* probabilities = attention.probabilities + at.probabilities;
    multiply<T>({.m = at.rows,
                 .n = at.seen,
                 .k = shape.head_size,
                 .a = {attention.query + at.query, at.stride},
                 .b = {context.key + at.key, at.key_stride, true},
                 .c = probabilities,
                 .c_stride = pieces.length(),
                 .scale = scale});
    piece_softmax(at, pieces.length(), probabilities);
    multiply<T>({.m = at.rows,
                 .n = shape.head_size,
                 .k = at.seen,
                 .a = {probabilities, pieces.length()},
                 .b = {context.value + at.key, at.key_stride},
                 .c = y + at.query,
                 .c_stride = at.stride});
  });
  return {};
}

template <class T>
Result<void> context_attention_backward(const ContextParallel<T>& context, const Attention<T>& attention,
                                        const T* d_y, const AttentionGradients<T>& gradients) {
  const AttentionShape& shape = attention.shape;
  const auto pieces = pieces_of(context, shape);
  const std::size_t D = shape.head_size, length = pieces.length();
  TRY(pieces.gather(attention.key, context.key));
  TRY(pieces.gather(attention.value, context.value));
  const std::size_t elements = shape.batch * length * shape.key_heads * D;
  std::fill_n(context.d_key, elements, T{0});
  std::fill_n(context.d_value, elements, T{0});
  const T scale = T{1} / std::sqrt(static_cast<T>(D));
  T* d_scores = gradients.scratch;
  for_each_head(pieces, shape, context.group->index(), [&](const PieceOfHead& at) {
    const T* probabilities = attention.probabilities + at.probabilities;
    const Matrix<T> d_out{d_y + at.query, at.stride};
    multiply<T>({.m = at.seen,
                 .n = D,
                 .k = at.rows,
                 .a = {probabilities, length, true},
                 .b = d_out,
                 .c = context.d_value + at.key,
                 .c_stride = at.key_stride,
                 .write = Write::accumulate});
    multiply<T>({.m = at.rows,
                 .n = at.seen,
                 .k = D,
                 .a = d_out,
                 .b = {context.value + at.key, at.key_stride, true},
                 .c = d_scores,
                 .c_stride = length});
    piece_softmax_backward(at, length, probabilities, d_scores);
    multiply<T>({.m = at.rows,
                 .n = D,
                 .k = at.seen,
                 .a = {d_scores, length},
                 .b = {context.key + at.key, at.key_stride},
                 .c = gradients.query + at.query,
                 .c_stride = at.stride,
                 .scale = scale});
    multiply<T>({.m = at.seen,
                 .n = D,
                 .k = at.rows,
                 .a = {d_scores, length, true},
                 .b = {attention.query + at.query, at.stride},
                 .c = context.d_key + at.key,
                 .c_stride = at.key_stride,
                 .scale = scale,
                 .write = Write::accumulate});
  });
  TRY(pieces.scatter_sum(context.d_key, gradients.key));
  return pieces.scatter_sum(context.d_value, gradients.value);
}

template Rotary<float> rotary_of<float>(const ModelConfig&, std::size_t, const SequenceMember&);
template Rotary<double> rotary_of<double>(const ModelConfig&, std::size_t, const SequenceMember&);
template ContextParallel<float> carve_context<float>(Carver<float>&, std::size_t, std::size_t,
                                                     const ModelConfig&);
template ContextParallel<double> carve_context<double>(Carver<double>&, std::size_t, std::size_t,
                                                       const ModelConfig&);
template Result<void> context_attention_forward<float>(const ContextParallel<float>&, const Attention<float>&,
                                                       float*);
template Result<void> context_attention_forward<double>(const ContextParallel<double>&,
                                                        const Attention<double>&, double*);
template Result<void> context_attention_backward<float>(const ContextParallel<float>&,
                                                        const Attention<float>&, const float*,
                                                        const AttentionGradients<float>&);
template Result<void> context_attention_backward<double>(const ContextParallel<double>&,
                                                         const Attention<double>&, const double*,
                                                         const AttentionGradients<double>&);

}  // namespace troupe::apps::gpt
