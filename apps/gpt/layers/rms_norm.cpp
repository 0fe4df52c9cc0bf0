#include "apps/gpt/layers/rms_norm.hpp"

#include <cmath>

#include "apps/gpt/layers/vector_math.hpp"

namespace troupe::apps::gpt {

template <class T>
void rms_norm_forward(const RmsNorm<T>& norm, T* y) {
  const std::size_t C = norm.width;
  const T* weight = norm.weight;
  for (std::size_t n = 0; n < norm.rows; ++n) {
    const T* x = norm.x + n * C;
    const T squares = ordered_sum<T>(C, [=](std::size_t c) { return x[c] * x[c]; });
    const T scale = T{1} / std::sqrt(squares / static_cast<T>(C) + norm.epsilon);
    norm.scale[n] = scale;
    for (std::size_t c = 0; c < C; ++c) y[n * C + c] = x[c] * scale * weight[c];
  }
}

template <class T>
void rms_norm_backward_input(const RmsNorm<T>& norm, const T* d_y, T* d_x, Write write) {
  const std::size_t C = norm.width;
  const T* weight = norm.weight;
  for (std::size_t n = 0; n < norm.rows; ++n) {
    const T* x = norm.x + n * C;
    const T* d_out = d_y + n * C;
    T* d_in = d_x + n * C;
    const T scale = norm.scale[n];
    const T dot = ordered_sum<T>(C, [=](std::size_t c) { return d_out[c] * weight[c] * x[c]; });
    const T pull = dot * scale * scale / static_cast<T>(C);
    const auto gradient = [=](std::size_t c) { return scale * (d_out[c] * weight[c] - x[c] * pull); };
    if (write == Write::overwrite) {
      for (std::size_t c = 0; c < C; ++c) d_in[c] = gradient(c);
    } else {
      for (std::size_t c = 0; c < C; ++c) d_in[c] += gradient(c);
    }
  }
}

template <class T>
void rms_norm_backward_weight(const RmsNorm<T>& norm, const T* d_y, T* d_weight) {
  const std::size_t C = norm.width;
  for (std::size_t n = 0; n < norm.rows; ++n) {
    const T* x = norm.x + n * C;
    const T* d_out = d_y + n * C;
    const T scale = norm.scale[n];
    for (std::size_t c = 0; c < C; ++c) d_weight[c] += d_out[c] * x[c] * scale;
  }
}

template decltype(rms_norm_forward<float>) rms_norm_forward<float>;
template decltype(rms_norm_forward<double>) rms_norm_forward<double>;
template decltype(rms_norm_backward_input<float>) rms_norm_backward_input<float>;
template decltype(rms_norm_backward_input<double>) rms_norm_backward_input<double>;
template decltype(rms_norm_backward_weight<float>) rms_norm_backward_weight<float>;
template decltype(rms_norm_backward_weight<double>) rms_norm_backward_weight<double>;

}  // namespace troupe::apps::gpt
