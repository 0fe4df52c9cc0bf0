#include "apps/gpt/layers/activation.hpp"

#include "apps/gpt/layers/vector_math.hpp"

namespace troupe::apps::gpt {

namespace {

// 0.5 (1 + tanh(z)) = sigmoid(2z), so gelu(x) = x * sigmoid(slope * (x + cubic * x^3)).
template <class T>
constexpr T kGeluSlope = static_cast<T>(1.5957691216057308);  // 2 sqrt(2 / pi)
template <class T>
constexpr T kGeluCubic = static_cast<T>(0.044715);

}  // namespace

template <class T>
void swiglu_forward(std::size_t count, const T* gate, const T* up, T* y) {
  vectorised([=]() __attribute__((always_inline)) {
    for (std::size_t i = 0; i < count; ++i) y[i] = gate[i] * sigmoid(gate[i]) * up[i];
  });
}

template <class T>
void swiglu_backward(std::size_t count, const T* gate, const T* up, const T* d_y, T* d_gate, T* d_up) {
  vectorised([=]() __attribute__((always_inline)) {
    for (std::size_t i = 0; i < count; ++i) {
      const T s = sigmoid(gate[i]);
      const T silu = gate[i] * s;
      d_up[i] = d_y[i] * silu;
      d_gate[i] = d_y[i] * up[i] * (s + silu * (T{1} - s));
    }
  });
}

template <class T>
void gelu_forward(std::size_t count, const T* x, T* y) {
  vectorised([=]() __attribute__((always_inline)) {
    for (std::size_t i = 0; i < count; ++i) {
      y[i] = x[i] * sigmoid(kGeluSlope<T> * (x[i] + kGeluCubic<T> * x[i] * x[i] * x[i]));
    }
  });
}

template <class T>
void gelu_backward(std::size_t count, const T* x, const T* d_y, T* d_x) {
  vectorised([=]() __attribute__((always_inline)) {
    for (std::size_t i = 0; i < count; ++i) {
      const T square = x[i] * x[i];
      const T s = sigmoid(kGeluSlope<T> * (x[i] + kGeluCubic<T> * square * x[i]));
      const T slope = kGeluSlope<T> * (T{1} + T{3} * kGeluCubic<T> * square);
      d_x[i] = d_y[i] * (s + x[i] * s * (T{1} - s) * slope);
    }
  });
}

template decltype(swiglu_forward<float>) swiglu_forward<float>;
template decltype(swiglu_forward<double>) swiglu_forward<double>;
template decltype(swiglu_backward<float>) swiglu_backward<float>;
template decltype(swiglu_backward<double>) swiglu_backward<double>;
template decltype(gelu_forward<float>) gelu_forward<float>;
template decltype(gelu_forward<double>) gelu_forward<double>;
template decltype(gelu_backward<float>) gelu_backward<float>;
template decltype(gelu_backward<double>) gelu_backward<double>;

}  // namespace troupe::apps::gpt
