#pragma once

#include <cstddef>

namespace troupe::apps::gpt {

/// y[i] = silu(gate[i]) * up[i] with silu(x) = x * sigmoid(x).
template <class T>
void swiglu_forward(std::size_t count, const T* gate, const T* up, T* y);

/// Overwrites d_gate and d_up.
template <class T>
void swiglu_backward(std::size_t count, const T* gate, const T* up, const T* d_y, T* d_gate, T* d_up);

/// y[i] = gelu(x[i]) in its tanh form, 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
template <class T>
void gelu_forward(std::size_t count, const T* x, T* y);

/// Overwrites d_x.
template <class T>
void gelu_backward(std::size_t count, const T* x, const T* d_y, T* d_x);

}  // namespace troupe::apps::gpt
