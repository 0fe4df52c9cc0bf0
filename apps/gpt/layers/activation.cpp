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

template void swiglu_forward<float>(std::size_t, const float*, const float*, float*);
template void swiglu_forward<double>(std::size_t, const double*, const double*, double*);
template void swiglu_backward<float>(std::size_t, const float*, const float*, const float*, float*, float*);
template void swiglu_backward<double>(std::size_t, const double*, const double*, const double*, double*,
                                      double*);
template void gelu_forward<float>(std::size_t, const float*, float*);
template void gelu_forward<double>(std::size_t, const double*, double*);
template void gelu_backward<float>(std::size_t, const float*, const float*, float*);
template void gelu_backward<double>(std::size_t, const double*, const double*, double*);

}  // namespace troupe::apps::gpt
