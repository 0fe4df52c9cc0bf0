#include "apps/gpt/layers/bias.hpp"

namespace troupe::apps::gpt {

template <class T>
void bias_forward(std::size_t rows, std::size_t width, const T* bias, T* y) {
  for (std::size_t n = 0; n < rows; ++n) {
    for (std::size_t c = 0; c < width; ++c) y[n * width + c] += bias[c];
  }
}

template <class T>
void bias_backward(std::size_t rows, std::size_t width, const T* d_y, T* d_bias) {
  for (std::size_t n = 0; n < rows; ++n) {
    for (std::size_t c = 0; c < width; ++c) d_bias[c] += d_y[n * width + c];
  }
}

template decltype(bias_forward<float>) bias_forward<float>;
template decltype(bias_forward<double>) bias_forward<double>;
template decltype(bias_backward<float>) bias_backward<float>;
template decltype(bias_backward<double>) bias_backward<double>;

}  // namespace troupe::apps::gpt
