#pragma once

#include <cstddef>

#include "apps/gpt/model/block_context.hpp"
#include "apps/gpt/model/group.hpp"
#include "apps/gpt/model/projection.hpp"
#include "core/errors.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

// N rows of a pass, C width.

/// What a rank's layers have besides its part of them, if a group shares each layer. With sequence
/// parallelism each member also keeps only its own rows of the residual stream, and norms those: a
/// consecutive part of all N rows.
template <class X>
struct TensorParallel {
  using E = typename X::Element;

  typename X::Group* group = nullptr;
  bool sequence = false;
  E* gathered = nullptr;  ///< (N, C), with sequence parallelism only
  E* partial = nullptr;   ///< (N, C): this rank's contribution to a sum
  E* own = nullptr;       ///< (the most rows of a member, C), with sequence parallelism only
  E* again = nullptr;     ///< (N, C): besides `gathered`, with sequence parallelism and experts only
  typename X::Sums sums{};
};

/// The most rows that a member of a group of this size keeps.
inline std::size_t most_own_rows(std::size_t rows, std::size_t size) {
  return (rows + size - 1) / size;
}

/// What layers of this configuration need between this many members; the caller sets the group and `partial`.
template <class X>
TensorParallel<X> carve_tensor(Carver& carver, std::size_t members, bool sequence, std::size_t rows,
                               const ModelConfig& config) {
  using E = typename X::Element;
  const std::size_t width = config.width, most = most_own_rows(rows, members);
  TensorParallel<X> tensor;
  tensor.sequence = sequence;
  if (sequence) {
    tensor.gathered = carver.take<E>(rows, width);
    tensor.own = carver.take<E>(most, width);
    if (config.experts.count > 0) tensor.again = carver.take<E>(rows, width);
  }
  tensor.sums = X::carve_sums(carver, members, rows, most * width);
  return tensor;
}

/// A rank's rows of the residual stream; all without a group, or without sequence parallelism.
template <class X>
std::size_t own_rows(const BlockContext<X>& context) {
  const auto* tensor = context.tensor;
  const std::size_t rows = context.shape.rows();
  if (tensor == nullptr || !tensor->sequence) return rows;
  return even_counts(tensor->group->size(), rows)[tensor->group->index()];
}

/// (N, C) of all members, from each member's own rows. Valid until the next call.
template <class X>
core::Result<const typename X::Element*> all_rows(const BlockContext<X>& context,
                                                  const typename X::Element* own) {
  const auto* tensor = context.tensor;
  if (tensor == nullptr || !tensor->sequence) return own;
  const auto counts = even_counts(tensor->group->size(), context.shape.rows(), context.config.width);
  TRY(context.engine.gather(*tensor->group, own, tensor->gathered, counts));
  return tensor->gathered;
}

/// This rank's own rows of the sum of all members' `partial` (N, C), which is overwritten. Valid until the
/// next call, or as long as `partial`.
template <class X>
core::Result<const typename X::Element*> summed_rows(const BlockContext<X>& context,
                                                     typename X::Element* partial) {
  const auto* tensor = context.tensor;
  if (tensor == nullptr) return partial;
  if (!tensor->sequence) {
    TRY(context.engine.sum(*tensor->group, tensor->sums, partial,
                           context.shape.rows() * context.config.width));
    return partial;
  }
  const auto counts = even_counts(tensor->group->size(), context.shape.rows(), context.config.width);
  TRY(context.engine.scatter_sum(*tensor->group, tensor->sums.scratch, partial, tensor->own, counts));
  return tensor->own;
}

/// residual += this rank's rows of the sum of all members' partial rows. With a group.
template <class X>
core::Result<void> add_summed_rows(const BlockContext<X>& context, typename X::Element* residual) {
  const auto* sum = TRY(summed_rows(context, context.tensor->partial));
  context.engine.add(sum, residual, own_rows(context) * context.config.width);
  return {};
}

/// residual += x * weight^T for `in` columns of x (N, in), summed over the ranks that share the product by
/// rows, each with one part of x. Without a group this is one product.
template <class X>
core::Result<void> project_into_residual(const BlockContext<X>& context,
                                         const Pass<typename X::Element>& pass, std::size_t in,
                                         std::size_t weight, const typename X::Element* x,
                                         typename X::Element* residual) {
  const LinearShape shape{context.shape.rows(), in, context.config.width};
  if (context.tensor == nullptr)
    return project(context.engine, pass, shape, weight, x, residual, Write::accumulate);
  TRY(project(context.engine, pass, shape, weight, x, context.tensor->partial));
  return add_summed_rows(context, residual);
}

}  // namespace troupe::apps::gpt
