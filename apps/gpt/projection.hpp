#pragma once

#include "apps/gpt/layers/matmul.hpp"
#include "apps/gpt/pass.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

/// y (N, out) (+)= x (N, in) * weight^T
template <class T>
core::Result<void> project(const Pass<T>& pass, LinearShape shape, std::size_t weight, const T* x, T* y,
                           Write write = Write::overwrite) {
  linear_forward(shape, x, TRY(pass.use(weight)), y, write);
  return {};
}

/// d_x (N, in) (+)= d_y (N, out) * weight, and the weight's own gradient, which is complete then.
template <class T>
core::Result<void> project_backward(const Pass<T>& pass, LinearShape shape, std::size_t weight, const T* x,
                                    const T* d_y, T* d_x, Write write) {
  const T* values = TRY(pass.use(weight));
  linear_backward_weight(shape, d_y, x, pass.gradient(weight));
  pass.ready(weight);
  linear_backward_input(shape, d_y, values, d_x, write);
  return {};
}

}  // namespace troupe::apps::gpt
