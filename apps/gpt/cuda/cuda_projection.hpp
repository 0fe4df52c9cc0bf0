#pragma once

#include "apps/gpt/cuda/cuda_block.hpp"
#include "apps/gpt/cuda/cuda_weight_work.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

/// As in apps/gpt/model/projection.hpp, on a GPU.
template <class E>
core::Result<void> project(const CudaContext& context, const CudaPass<E>& pass, LinearShape shape,
                           std::size_t weight, const E* x, E* y, Write write = Write::overwrite) {
  context.blas.linear_forward(shape, x, TRY(pass.use(weight)), y, write);
  return {};
}

/// x and d_y are those that the weights' half of backward will find.
template <class E>
void add_weight_gradient(const CudaContext& context, const CudaPass<E>& pass, LinearShape shape,
                         std::size_t weight, const E* x, const E* d_y) {
  add_to_gradient(pass, weight, [=](const CudaPass<E>& at) {
    context.blas.linear_backward_weight(shape, d_y, x, at.gradient(weight));
  });
}

/// As above.
template <class E>
core::Result<void> project_backward(const CudaContext& context, const CudaPass<E>& pass, LinearShape shape,
                                    std::size_t weight, const E* x, const E* d_y, E* d_x, Write write) {
  const E* values = TRY(pass.use(weight));
  add_weight_gradient(context, pass, shape, weight, x, d_y);
  context.blas.linear_backward_input(shape, d_y, values, d_x, write);
  return {};
}

}  // namespace troupe::apps::gpt
