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

}  // namespace

template <class T>
void attention_forward(const Attention<T>& attention, T* y) {
  const auto [B, L, H, D] = attention.shape;
  const std::size_t stride = H * D;
  for (std::size_t b = 0; b < B; ++b) {
    for (std::size_t h = 0; h < H; ++h) {
      const std::size_t start = b * L * stride + h * D;
      T* probabilities = attention.probabilities + (b * H + h) * L * L;
      multiply<T>({.m = L,
                   .n = L,
                   .k = D,
                   .a = {attention.query + start, stride},
                   .b = {attention.key + start, stride, true},
                   .c = probabilities,
                   .c_stride = L,
                   .scale = score_scale<T>(attention.shape)});
      causal_softmax(L, probabilities);
      multiply<T>({.m = L,
                   .n = D,
                   .k = L,
                   .a = {probabilities, L},
                   .b = {attention.value + start, stride},
                   .c = y + start,
                   .c_stride = stride});
    }
  }
}

template <class T>
void attention_backward(const Attention<T>& attention, const T* d_y, const AttentionGradients<T>& gradients) {
  const auto [B, L, H, D] = attention.shape;
  const std::size_t stride = H * D;
  const T scale = score_scale<T>(attention.shape);
  T* d_scores = gradients.scratch;
  for (std::size_t b = 0; b < B; ++b) {
    for (std::size_t h = 0; h < H; ++h) {
      const std::size_t start = b * L * stride + h * D;
      const T* probabilities = attention.probabilities + (b * H + h) * L * L;
      multiply<T>({.m = L,
                   .n = D,
                   .k = L,
                   .a = {probabilities, L, true},
                   .b = {d_y + start, stride},
                   .c = gradients.value + start,
                   .c_stride = stride});
      multiply<T>({.m = L,
                   .n = L,
                   .k = D,
                   .a = {d_y + start, stride},
                   .b = {attention.value + start, stride, true},
                   .c = d_scores,
                   .c_stride = L});
      causal_softmax_backward(L, probabilities, d_scores);
      multiply<T>({.m = L,
                   .n = D,
                   .k = L,
                   .a = {d_scores, L},
                   .b = {attention.key + start, stride},
                   .c = gradients.query + start,
                   .c_stride = stride,
                   .scale = scale});
      multiply<T>({.m = L,
                   .n = D,
                   .k = L,
                   .a = {d_scores, L, true},
                   .b = {attention.query + start, stride},
                   .c = gradients.key + start,
                   .c_stride = stride,
                   .scale = scale});
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
