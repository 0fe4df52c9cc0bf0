#pragma once

#include "apps/gpt/layers/matmul.hpp"
#include "apps/gpt/model/pass.hpp"
#include "apps/gpt/model/weight_work.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

// X is the engine that computes, E its elements.

/// y (N, out) (+)= x (N, in) * weight^T
template <class X, class E>
core::Result<void> project(const X& engine, const Pass<E>& pass, LinearShape shape, std::size_t weight,
                           const E* x, E* y, Write write = Write::overwrite) {
  engine.linear_forward(shape, x, TRY(pass.use(weight)), y, write);
  return {};
}

/// Adds the weight's gradient, which is then complete, from x (N, in) and d_y (N, out). After pass.use(). x
/// and d_y are those that the weights' half of backward will find.
template <class X, class E>
void add_weight_gradient(const X& engine, const Pass<E>& pass, LinearShape shape, std::size_t weight,
                         const E* x, const E* d_y) {
  add_to_gradient(pass, weight, [=, &engine](const Pass<E>& at) {
    engine.linear_backward_weight(shape, d_y, x, at.gradient(weight));
  });
}

/// d_x (N, in) (+)= d_y (N, out) * weight, and adds the weight's gradient, as above.
template <class X, class E>
core::Result<void> project_backward(const X& engine, const Pass<E>& pass, LinearShape shape,
                                    std::size_t weight, const E* x, const E* d_y, E* d_x, Write write) {
  const E* values = TRY(pass.use(weight));
  add_weight_gradient(engine, pass, shape, weight, x, d_y);
  engine.linear_backward_input(shape, d_y, values, d_x, write);
  return {};
}

}  // namespace troupe::apps::gpt
