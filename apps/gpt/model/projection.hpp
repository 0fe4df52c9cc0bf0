#pragma once

#include "apps/gpt/layers/matmul.hpp"
#include "apps/gpt/model/pass.hpp"
#include "apps/gpt/model/weight_work.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

/// y (N, out) (+)= x (N, in) * weight^T
template <class T>
core::Result<void> project(const Pass<T>& pass, LinearShape shape, std::size_t weight, const T* x, T* y,
                           Write write = Write::overwrite) {
  linear_forward(shape, x, TRY(pass.use(weight)), y, write);
  return {};
}

/// Adds the weight's gradient, which is then complete, from x (N, in) and d_y (N, out). After pass.use().
template <class T>
void add_weight_gradient(const Pass<T>& pass, LinearShape shape, std::size_t weight, const T* x,
                         const T* d_y) {
  const T* kept = kept_for_weights(pass, d_y, shape.rows * shape.out);
  add_to_gradient(pass, weight,
                  [=](const Pass<T>& at) { linear_backward_weight(shape, kept, x, at.gradient(weight)); });
}

/// d_x (N, in) (+)= d_y (N, out) * weight, and adds the weight's gradient.
template <class T>
core::Result<void> project_backward(const Pass<T>& pass, LinearShape shape, std::size_t weight, const T* x,
                                    const T* d_y, T* d_x, Write write) {
  const T* values = TRY(pass.use(weight));
  add_weight_gradient(pass, shape, weight, x, d_y);
  linear_backward_input(shape, d_y, values, d_x, write);
  return {};
}

}  // namespace troupe::apps::gpt
