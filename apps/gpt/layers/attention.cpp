#include "apps/gpt/layers/attention.hpp"

#include <algorithm>
#include <cmath>

#include "apps/gpt/layers/matmul.hpp"
#include "apps/gpt/layers/vector_math.hpp"

namespace troupe::apps::gpt {

namespace {

/// Consecutive rows of one head of one sequence: all of them, or one of the rank's halves.
struct HeadRows {
  std::size_t count;
  std::size_t first;  // position of the first row, which sees that many keys and its own
  std::size_t seen;   // keys up to the last row's position
  std::size_t keys;   // T
  bool shares;        // has the same keys and values as the head before it
  std::size_t stride, key_stride;
  std::size_t query, key, probabilities;  // where they begin
};

template <class T, class Visit>
void for_each_head(const Attention<T>& attention, Visit visit) {
  const auto& [shape, query, key, value, probabilities, halves] = attention;
  const std::size_t parts = halves.positions == 0 ? 1 : 2, D = shape.head_size;
  HeadRows rows{};
  rows.count = shape.length / parts;
  rows.keys = halves.positions == 0 ? shape.length : halves.positions;
  rows.stride = shape.heads * D;
  rows.key_stride = shape.key_heads * D;
  for (std::size_t b = 0; b < shape.batch; ++b) {
    for (std::size_t h = 0; h < shape.heads; ++h) {
      rows.shares = h % (shape.heads / shape.key_heads) != 0;
      rows.key = b * rows.keys * rows.key_stride + h / (shape.heads / shape.key_heads) * D;
      for (std::size_t part = 0; part < parts; ++part) {
        rows.first = part == 0 ? halves.lower : halves.upper;
        rows.seen = rows.first + rows.count;
        rows.query = (b * shape.length + part * rows.count) * rows.stride + h * D;
        rows.probabilities = ((b * shape.heads + h) * shape.length + part * rows.count) * rows.keys;
        visit(rows);
      }
    }
  }
}

template <class T>
T score_scale(const AttentionShape& shape) {
  return T{1} / std::sqrt(static_cast<T>(shape.head_size));
}

// scores (rows, seen), rows T apart, to probabilities, in place.
template <class T>
void causal_softmax(const HeadRows& rows, T* scores) {
  for (std::size_t t = 0; t < rows.count; ++t) {
    T* row = scores + t * rows.keys;
    const std::size_t seen = rows.first + t + 1;
    const T most = largest(seen, row);
    vectorised([=]() __attribute__((always_inline)) {
      for (std::size_t s = 0; s < seen; ++s) row[s] = exponential(row[s] - most);
    });
    const T inverse = T{1} / ordered_sum<T>(seen, [=](std::size_t s) { return row[s]; });
    for (std::size_t s = 0; s < seen; ++s) row[s] *= inverse;
    std::fill(row + seen, row + rows.seen, T{0});
  }
}

// d_probabilities (rows, seen) to d_scores, in place; both have rows T apart. Masked places have probability
// zero, so their gradient is zero too.
template <class T>
void causal_softmax_backward(const HeadRows& rows, const T* probabilities, T* gradient) {
  for (std::size_t t = 0; t < rows.count; ++t) {
    const T* p = probabilities + t * rows.keys;
    T* d = gradient + t * rows.keys;
    const T dot = ordered_sum<T>(rows.first + t + 1, [=](std::size_t s) { return p[s] * d[s]; });
    for (std::size_t s = 0; s < rows.seen; ++s) d[s] = p[s] * (d[s] - dot);
  }
}

}  // namespace

template <class T>
void attention_forward(const Attention<T>& attention, T* y) {
  const std::size_t D = attention.shape.head_size;
  const T scale = score_scale<T>(attention.shape);
  for_each_head(attention, [&](const HeadRows& at) {
    T* probabilities = attention.probabilities + at.probabilities;
    multiply<T>({.m = at.count,
                 .n = at.seen,
                 .k = D,
                 .a = {attention.query + at.query, at.stride},
                 .b = {attention.key + at.key, at.key_stride, true},
                 .c = probabilities,
                 .c_stride = at.keys,
                 .scale = scale});
    causal_softmax(at, probabilities);
    multiply<T>({.m = at.count,
                 .n = D,
                 .k = at.seen,
                 .a = {probabilities, at.keys},
                 .b = {attention.value + at.key, at.key_stride},
                 .c = y + at.query,
                 .c_stride = at.stride});
  });
}

template <class T>
void attention_backward(const Attention<T>& attention, const T* d_y, const AttentionGradients<T>& gradients) {
  const AttentionShape& shape = attention.shape;
  const std::size_t D = shape.head_size;
  const T scale = score_scale<T>(shape);
  T* d_scores = gradients.scratch;
  const bool has_halves = attention.rows.positions > 0;
  if (has_halves) {  // each half sees other keys
    const std::size_t elements = shape.batch * attention.rows.positions * shape.key_heads * D;
    std::fill_n(gradients.key, elements, T{0});
    std::fill_n(gradients.value, elements, T{0});
  }
  for_each_head(attention, [&](const HeadRows& at) {
    const Write write = has_halves || at.shares ? Write::accumulate : Write::overwrite;
    const T* probabilities = attention.probabilities + at.probabilities;
    const Matrix<T> d_out{d_y + at.query, at.stride};
    multiply<T>({.m = at.seen,
                 .n = D,
                 .k = at.count,
                 .a = {probabilities, at.keys, true},
                 .b = d_out,
                 .c = gradients.value + at.key,
                 .c_stride = at.key_stride,
                 .write = write});
    multiply<T>({.m = at.count,
                 .n = at.seen,
                 .k = D,
                 .a = d_out,
                 .b = {attention.value + at.key, at.key_stride, true},
                 .c = d_scores,
                 .c_stride = at.keys});
    causal_softmax_backward(at, probabilities, d_scores);
    multiply<T>({.m = at.count,
                 .n = D,
                 .k = at.seen,
                 .a = {d_scores, at.keys},
                 .b = {attention.key + at.key, at.key_stride},
                 .c = gradients.query + at.query,
                 .c_stride = at.stride,
                 .scale = scale});
    multiply<T>({.m = at.seen,
                 .n = D,
                 .k = at.count,
                 .a = {d_scores, at.keys, true},
                 .b = {attention.query + at.query, at.stride},
                 .c = gradients.key + at.key,
                 .c_stride = at.key_stride,
                 .scale = scale,
                 .write = write});
  });
}

template decltype(attention_forward<float>) attention_forward<float>;
template decltype(attention_forward<double>) attention_forward<double>;
template decltype(attention_backward<float>) attention_backward<float>;
template decltype(attention_backward<double>) attention_backward<double>;

}  // namespace troupe::apps::gpt
