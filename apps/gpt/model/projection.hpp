#pragma once

#include <cstddef>
#include <utility>

#include "apps/gpt/layers/matmul.hpp"
#include "apps/gpt/model/block_context.hpp"
#include "apps/gpt/model/pass.hpp"
#include "apps/gpt/model/weight_work.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

// X is the engine that computes, E its elements. A rank computes `slices` slices of each layer, one product
// for each, so that a slice has the same bits wherever it is computed.

/// What a slice of a product has: some of its outputs, or some of the inputs that each output adds up.
enum class Sliced { outputs, inputs };

/// How terms of a sum over slices lie. Products write them faster `apart`: by row, the rows of one are often
/// a multiple of the memory apart in which caches repeat. Rows of experts are moved with all of their terms.
enum class Terms {
  apart,   ///< (slices, N, width)
  by_row,  ///< (N, slices, width)
};

/// One slice of a product, and where its part of each matrix begins.
struct ProductSlice {
  LinearShape shape;
  std::size_t x = 0, weight = 0, y = 0;
};

inline ProductSlice slice_of(LinearShape whole, Sliced by, std::size_t slices, std::size_t index) {
  LinearShape shape{whole.rows, whole.in, whole.out, whole.in, whole.in, whole.out};
  if (by == Sliced::outputs) {
    shape.out /= slices;
    return {shape, 0, index * shape.out * whole.in, index * shape.out};
  }
  shape.in /= slices;
  return {shape, index * shape.in, index * shape.in, 0};
}

/// Where a slice's term begins, and the elements from one of its rows to the next.
struct TermPlace {
  std::size_t begin, stride;
};

inline TermPlace term_of(Terms terms, std::size_t rows, std::size_t width, std::size_t slices,
                         std::size_t index) {
  if (terms == Terms::apart) return {index * rows * width, width};
  return {index * width, slices * width};
}

/// y = x * weight^T: (N, out), or if slices have inputs, a term from each.
template <class X, class E>
void multiply_forward(const BlockContext<X>& context, Sliced by, LinearShape whole, const E* x,
                      const E* weight, E* y, Terms terms = Terms::apart) {
  const std::size_t slices = context.slices;
  for (std::size_t i = 0; i < slices; ++i) {
    auto slice = slice_of(whole, by, slices, i);
    if (by == Sliced::inputs) {
      const auto term = term_of(terms, whole.rows, whole.out, slices, i);
      slice.shape.y_stride = term.stride;
      slice.y = term.begin;
    }
    context.engine.linear_forward(slice.shape, x + slice.x, weight + slice.weight, y + slice.y);
  }
}

/// d_x (+)= d_y * weight: (N, in), or if slices have outputs, a term from each.
template <class X, class E>
void multiply_backward(const BlockContext<X>& context, Sliced by, LinearShape whole, const E* d_y,
                       const E* weight, E* d_x, Write write, Terms terms = Terms::apart) {
  const std::size_t slices = context.slices;
  for (std::size_t i = 0; i < slices; ++i) {
    auto slice = slice_of(whole, by, slices, i);
    if (by == Sliced::outputs) {
      const auto term = term_of(terms, whole.rows, whole.in, slices, i);
      slice.shape.x_stride = term.stride;
      slice.x = term.begin;
    }
    context.engine.linear_backward_input(slice.shape, d_y + slice.y, weight + slice.weight, d_x + slice.x,
                                         write);
  }
}

template <class X, class E>
void multiply_backward_weight(const BlockContext<X>& context, Sliced by, LinearShape whole, const E* d_y,
                              const E* x, SumOf<E>* d_weight) {
  for (std::size_t i = 0; i < context.slices; ++i) {
    const auto slice = slice_of(whole, by, context.slices, i);
    context.engine.linear_backward_weight(slice.shape, d_y + slice.y, x + slice.x, d_weight + slice.weight);
  }
}

/// Like multiply_forward(), with a parameter.
template <class X, class E>
core::Result<void> project(const BlockContext<X>& context, const Pass<E>& pass, Sliced by, LinearShape shape,
                           std::size_t weight, const E* x, E* y, Terms terms = Terms::apart) {
  multiply_forward(context, by, shape, x, TRY(pass.use(weight)), y, terms);
  return {};
}

/// Adds the weight's gradient, which is then complete, from x (N, in) and d_y (N, out). After pass.use(). x
/// and d_y are those that the weights' half of backward will find.
template <class X, class E>
core::Result<void> add_weight_gradient(const BlockContext<X>& context, const Pass<E>& pass, Sliced by,
                                       LinearShape shape, std::size_t weight, const E* x, const E* d_y) {
  return add_to_gradient(pass, weight, [=](const Pass<E>& at) {
    multiply_backward_weight(context, by, shape, d_y, x, at.gradient(weight));
  });
}

/// Like multiply_backward(), with a parameter, and adds the weight's gradient, as above.
template <class X, class E>
core::Result<void> project_backward(const BlockContext<X>& context, const Pass<E>& pass, Sliced by,
                                    LinearShape shape, std::size_t weight, const E* x, const E* d_y, E* d_x,
                                    Write write, Terms terms = Terms::apart) {
  const E* values = TRY(pass.use(weight));
  TRY(add_weight_gradient(context, pass, by, shape, weight, x, d_y));
  multiply_backward(context, by, shape, d_y, values, d_x, write, terms);
  return {};
}

}  // namespace troupe::apps::gpt
