#include "apps/gpt/layers/attention.hpp"

#include <algorithm>
#include <cmath>

#include "apps/gpt/layers/matmul.hpp"
#include "apps/gpt/layers/vector_math.hpp"

namespace troupe::apps::gpt {

namespace {

template <class T>
T score_scale(const AttentionShape& shape) {
  return T{1} / std::sqrt(static_cast<T>(shape.head_size));
}

// scores (T, T) -> probabilities, in place.
template <class T>
void causal_softmax(std::size_t length, T* scores) {
  for (std::size_t t = 0; t < length; ++t) {
    T* row = scores + t * length;
    const std::size_t seen = t + 1;
    const T most = largest(seen, row);
    vectorised([=]() __attribute__((always_inline)) {
      for (std::size_t s = 0; s < seen; ++s) row[s] = exponential(row[s] - most);
    });
    const T inverse = T{1} / ordered_sum<T>(seen, [=](std::size_t s) { return row[s]; });
    for (std::size_t s = 0; s < seen; ++s) row[s] *= inverse;
    std::fill(row + seen, row + length, T{0});
  }
}

// d_probabilities (T, T) -> d_scores, in place. Masked places have probability zero, so their gradient is
// zero too.
template <class T>
void causal_softmax_backward(std::size_t length, const T* probabilities, T* gradient) {
  for (std::size_t t = 0; t < length; ++t) {
    const T* p = probabilities + t * length;
    T* d = gradient + t * length;
    const T dot = ordered_sum<T>(t + 1, [=](std::size_t s) { return p[s] * d[s]; });
    for (std::size_t s = 0; s < length; ++s) d[s] = p[s] * (d[s] - dot);
  }
}

// Where the tensors of one head of one sequence begin, and the distance between their rows.
struct HeadPlace {
  HeadPlace(const AttentionShape& shape, std::size_t b, std::size_t h)
      : shares(h % (shape.heads / shape.key_heads) != 0),
        stride(shape.heads * shape.head_size),
        key_stride(shape.key_heads * shape.head_size),
        query(b * shape.length * stride + h * shape.head_size),
        key(b * shape.length * key_stride + h / (shape.heads / shape.key_heads) * shape.head_size),
        probabilities((b * shape.heads + h) * shape.length * shape.length) {}

  bool shares;  // has the same keys and values as the head before it
  std::size_t stride, key_stride;
  std::size_t query, key, probabilities;
};

}  // namespace

template <class T>
void attention_forward(const Attention<T>& attention, T* y) {
  const AttentionShape& shape = attention.shape;
  const std::size_t L = shape.length, D = shape.head_size;
  for (std::size_t b = 0; b < shape.batch; ++b) {
    for (std::size_t h = 0; h < shape.heads; ++h) {
      const HeadPlace at(shape, b, h);
      T* probabilities = attention.probabilities + at.probabilities;
      multiply<T>({.m = L,
                   .n = L,
                   .k = D,
                   .a = {attention.query + at.query, at.stride},
                   .b = {attention.key + at.key, at.key_stride, true},
                   .c = probabilities,
                   .c_stride = L,
                   .scale = score_scale<T>(shape)});
      causal_softmax(L, probabilities);
      multiply<T>({.m = L,
                   .n = D,
                   .k = L,
                   .a = {probabilities, L},
                   .b = {attention.value + at.key, at.key_stride},
                   .c = y + at.query,
                   .c_stride = at.stride});
    }
  }
}

template <class T>
void attention_backward(const Attention<T>& attention, const T* d_y, const AttentionGradients<T>& gradients) {
  const AttentionShape& shape = attention.shape;
  const std::size_t L = shape.length, D = shape.head_size;
  const T scale = score_scale<T>(shape);
  T* d_scores = gradients.scratch;
  for (std::size_t b = 0; b < shape.batch; ++b) {
    for (std::size_t h = 0; h < shape.heads; ++h) {
      const HeadPlace at(shape, b, h);
      const Write write = at.shares ? Write::accumulate : Write::overwrite;
      const T* probabilities = attention.probabilities + at.probabilities;
      multiply<T>({.m = L,
                   .n = D,
                   .k = L,
                   .a = {probabilities, L, true},
                   .b = {d_y + at.query, at.stride},
                   .c = gradients.value + at.key,
                   .c_stride = at.key_stride,
                   .write = write});
      multiply<T>({.m = L,
                   .n = L,
                   .k = D,
                   .a = {d_y + at.query, at.stride},
                   .b = {attention.value + at.key, at.key_stride, true},
                   .c = d_scores,
                   .c_stride = L});
      causal_softmax_backward(L, probabilities, d_scores);
      multiply<T>({.m = L,
                   .n = D,
                   .k = L,
                   .a = {d_scores, L},
                   .b = {attention.key + at.key, at.key_stride},
                   .c = gradients.query + at.query,
                   .c_stride = at.stride,
                   .scale = scale});
      multiply<T>({.m = L,
                   .n = D,
                   .k = L,
                   .a = {d_scores, L, true},
                   .b = {attention.query + at.query, at.stride},
                   .c = gradients.key + at.key,
                   .c_stride = at.key_stride,
                   .scale = scale,
                   .write = write});
    }
  }
}

template void attention_forward<float>(const Attention<float>&, float*);
template void attention_forward<double>(const Attention<double>&, double*);
template void attention_backward<float>(const Attention<float>&, const float*,
                                        const AttentionGradients<float>&);
template void attention_backward<double>(const Attention<double>&, const double*,
                                         const AttentionGradients<double>&);

}  // namespace troupe::apps::gpt
