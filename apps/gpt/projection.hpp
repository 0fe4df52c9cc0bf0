#pragma once

#include "apps/gpt/layers/matmul.hpp"
#include "apps/gpt/pass.hpp"
#include "apps/gpt/pipeline/weight_work.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

/// y (N, out) (+)= x (N, in) * weight^T
template <class T>
core::Result<void> project(const Pass<T>& pass, LinearShape shape, std::size_t weight, const T* x, T* y,
                           Write write = Write::overwrite) {
  linear_forward(shape, x, TRY(pass.use(weight)), y, write);
  return {};
}

/// The weight's own gradient, which is complete then, from x (N, in) and d_y (N, out). After pass.use().
template <class T>
void add_weight_gradient(const Pass<T>& pass, LinearShape shape, std::size_t weight, const T* x,
                         const T* d_y) {
  if (pass.later == nullptr) {
    linear_backward_weight(shape, d_y, x, pass.gradient(weight));
    return pass.ready(weight);
  }
  const T* kept = pass.later->keep(d_y, shape.rows * shape.out);
  pass.later->add([=](const Pass<T>& at) -> core::Result<void> {
    TRY(at.use(weight));
    add_weight_gradient(at, shape, weight, x, kept);
    return {};
  });
}

/// d_x (N, in) (+)= d_y (N, out) * weight, and the weight's own gradient.
template <class T>
core::Result<void> project_backward(const Pass<T>& pass, LinearShape shape, std::size_t weight, const T* x,
                                    const T* d_y, T* d_x, Write write) {
  const T* values = TRY(pass.use(weight));
  add_weight_gradient(pass, shape, weight, x, d_y);
  linear_backward_input(shape, d_y, values, d_x, write);
  return {};
}

}  // namespace troupe::apps::gpt
