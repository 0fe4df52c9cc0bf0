#include "apps/gpt/layers/layer_norm.hpp"

#include <cmath>

#include "apps/gpt/layers/vector_math.hpp"

namespace troupe::apps::gpt {

template <class T>
void layer_norm_forward(const LayerNorm<T>& norm, T* y) {
  const std::size_t C = norm.width;
  const T count = static_cast<T>(C);
  for (std::size_t n = 0; n < norm.rows; ++n) {
    const T* x = norm.x + n * C;
    const T mean = ordered_sum<T>(C, [=](std::size_t c) { return x[c]; }) / count;
    const T squares = ordered_sum<T>(C, [=](std::size_t c) { return (x[c] - mean) * (x[c] - mean); });
    const T scale = T{1} / std::sqrt(squares / count + norm.epsilon);
    norm.mean[n] = mean;
    norm.scale[n] = scale;
    for (std::size_t c = 0; c < C; ++c) y[n * C + c] = (x[c] - mean) * scale * norm.weight[c] + norm.bias[c];
  }
}

template <class T>
void layer_norm_backward_input(const LayerNorm<T>& norm, const T* d_y, T* d_x, Write write) {
  const std::size_t C = norm.width;
  const T count = static_cast<T>(C);
  const T* weight = norm.weight;
  for (std::size_t n = 0; n < norm.rows; ++n) {
    const T* x = norm.x + n * C;
    const T* d_out = d_y + n * C;
    T* d_in = d_x + n * C;
    const T mean = norm.mean[n], scale = norm.scale[n];
    const T average = ordered_sum<T>(C, [=](std::size_t c) { return d_out[c] * weight[c]; }) / count;
    const T dot = ordered_sum<T>(C, [=](std::size_t c) { return d_out[c] * weight[c] * (x[c] - mean); });
    const T pull = dot * scale * scale / count;
    const auto gradient = [=](std::size_t c) {
      return scale * (d_out[c] * weight[c] - average - (x[c] - mean) * pull);
    };
    if (write == Write::overwrite) {
      for (std::size_t c = 0; c < C; ++c) d_in[c] = gradient(c);
    } else {
      for (std::size_t c = 0; c < C; ++c) d_in[c] += gradient(c);
    }
  }
}

template <class T>
void layer_norm_backward_weight(const LayerNorm<T>& norm, const T* d_y, T* d_weight, T* d_bias) {
  const std::size_t C = norm.width;
  for (std::size_t n = 0; n < norm.rows; ++n) {
    const T* x = norm.x + n * C;
    const T* d_out = d_y + n * C;
    const T mean = norm.mean[n], scale = norm.scale[n];
    for (std::size_t c = 0; c < C; ++c) {
      d_weight[c] += d_out[c] * (x[c] - mean) * scale;
      d_bias[c] += d_out[c];
    }
  }
}

template decltype(layer_norm_forward<float>) layer_norm_forward<float>;
template decltype(layer_norm_forward<double>) layer_norm_forward<double>;
template decltype(layer_norm_backward_input<float>) layer_norm_backward_input<float>;
template decltype(layer_norm_backward_input<double>) layer_norm_backward_input<double>;
template decltype(layer_norm_backward_weight<float>) layer_norm_backward_weight<float>;
template decltype(layer_norm_backward_weight<double>) layer_norm_backward_weight<double>;

}  // namespace troupe::apps::gpt
