#pragma once

#include <algorithm>
#include <cstddef>

#include "apps/gpt/model/block_context.hpp"
#include "apps/gpt/model/group.hpp"
#include "apps/gpt/model/projection.hpp"
#include "apps/gpt/model/share.hpp"
#include "core/errors.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

// N rows of a pass, C width.

/// What a rank's layers have besides its part of them, if each layer is computed in slices. With sequence
/// parallelism each member of the group also keeps only its own rows of the residual stream, and norms those:
/// a consecutive part of all N rows.
template <class X>
struct TensorParallel {
  using E = typename X::Element;

  typename X::Group* group = nullptr;  ///< null: this rank computes all slices
  bool sequence = false;
  E* gathered = nullptr;          ///< (N, C), with sequence parallelism only
  E* partial = nullptr;           ///< this rank's terms of (N, C)
  E* own = nullptr;               ///< (the most rows of a member, C), with sequence parallelism only
  E* again = nullptr;             ///< (N, C): besides `gathered`, with sequence parallelism and experts only
  SumOf<E>* of_slices = nullptr;  ///< for sum_over_slices()
  typename X::Sums sums{};

  std::size_t members() const { return group == nullptr ? 1 : group->size(); }
  std::size_t index() const { return group == nullptr ? 0 : group->index(); }
};

/// The most rows that a member of a group of this size keeps.
inline std::size_t most_own_rows(std::size_t rows, std::size_t size) {
  return (rows + size - 1) / size;
}

/// The ranges of rows whose gradients a rank adds up by themselves: those of its slices, or of all slices if
/// it keeps all rows. A GPU computes slices only between ranks, and takes all rows at once.
template <class X>
std::size_t row_ranges(std::size_t members, std::size_t slices, bool sequence) {
  if (sequence) return slices;
  return X::kIsDevice ? 1 : members * slices;
}

/// What layers of this configuration, the share's, need; the caller sets the group and `partial`.
template <class X>
TensorParallel<X> carve_tensor(Carver& carver, const TensorShare& share, std::size_t rows,
                               const ModelConfig& config) {
  using E = typename X::Element;
  const auto& [members, index, sequence, slices] = share;
  const std::size_t width = config.width, most = most_own_rows(rows, members);
  TensorParallel<X> tensor;
  tensor.sequence = sequence;
  const std::size_t of_norms = row_ranges<X>(members, slices, sequence) * 2 * width;
  tensor.of_slices = carver.take<SumOf<E>>(std::max(of_norms, slices * config.head_size()));
  if (sequence) {
    tensor.gathered = carver.take<E>(rows, width);
    tensor.own = carver.take<E>(most, width);
    if (config.experts.count > 0) tensor.again = carver.take<E>(rows, width);
  }
  const std::size_t of_experts = config.experts.count > 0 ? rows * config.experts.sent() : 0;
  tensor.sums = X::carve_sums(carver, members, rows, most * width,
                              std::max({2 * width, config.head_size(), of_experts}));
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

/// This rank's own rows of the sum of all members' `values` (N, C), which are overwritten. Valid until the
/// next call, or as long as `values`.
template <class X>
core::Result<const typename X::Element*> summed_over_members(const BlockContext<X>& context,
                                                             typename X::Element* values) {
  const auto* tensor = context.tensor;
  if (tensor == nullptr || tensor->group == nullptr) return values;
  if (!tensor->sequence) {
    TRY(context.engine.sum(*tensor->group, tensor->sums, values,
                           context.shape.rows() * context.config.width));
    return values;
  }
  const auto counts = even_counts(tensor->group->size(), context.shape.rows(), context.config.width);
  TRY(context.engine.scatter_sum(*tensor->group, tensor->sums.scratch, values, tensor->own, counts));
  return tensor->own;
}

/// The same for the terms of all slices.
template <class X>
core::Result<const typename X::Element*> summed_rows(const BlockContext<X>& context,
                                                     typename X::Element* partial,
                                                     Terms terms = Terms::apart) {
  const std::size_t N = context.shape.rows(), C = context.config.width;
  if (terms == Terms::apart)
    context.engine.add_slices(1, context.slices, N * C, partial);
  else
    context.engine.add_slices(N, context.slices, C, partial);
  return summed_over_members(context, partial);
}

/// residual += this rank's rows of the sum of all slices' partial rows.
template <class X>
core::Result<void> add_summed_rows(const BlockContext<X>& context, typename X::Element* residual,
                                   Terms terms = Terms::apart) {
  const auto* sum = TRY(summed_rows(context, context.tensor->partial, terms));
  context.engine.add(sum, residual, own_rows(context) * context.config.width);
  return {};
}

/// residual += x * weight^T for `in` columns of x (N, in), of which each slice has some. Without slices this
/// is one product.
template <class X>
core::Result<void> project_into_residual(const BlockContext<X>& context,
                                         const Pass<typename X::Element>& pass, std::size_t in,
                                         std::size_t weight, const typename X::Element* x,
                                         typename X::Element* residual) {
  const LinearShape shape{context.shape.rows(), in, context.config.width};
  if (context.tensor == nullptr) {
    context.engine.linear_forward(shape, x, TRY(pass.use(weight)), residual, Write::accumulate);
    return {};
  }
  TRY(project(context, pass, Sliced::inputs, shape, weight, x, context.tensor->partial));
  return add_summed_rows(context, residual);
}

/// The sum over all slices of `count` values that each adds to zeros by add(slice, values): `here` of them on
/// this rank, and the others, unless these are all, on the other members. Valid until the next call.
template <class X, class Add>
core::Result<const SumOf<typename X::Element>*> sum_over_slices(const BlockContext<X>& context,
                                                                std::size_t here, bool are_all,
                                                                std::size_t count, const Add& add) {
  const auto& tensor = *context.tensor;
  SumOf<typename X::Element>* values = tensor.of_slices;
  context.engine.zero(values, here * count);
  for (std::size_t slice = 0; slice < here; ++slice) add(slice, values + slice * count);
  context.engine.add_slices(1, here, count, values);
  if (!are_all && tensor.group != nullptr) TRY(context.engine.sum(*tensor.group, tensor.sums, values, count));
  return values;
}

/// The same for what each row adds, where slices have consecutive rows: add(first, rows, values) adds those
/// of some of the rank's own rows.
template <class X, class Add>
core::Result<const SumOf<typename X::Element>*> sum_over_rows(const BlockContext<X>& context,
                                                              std::size_t count, const Add& add) {
  const auto& tensor = *context.tensor;
  const std::size_t ranges = row_ranges<X>(tensor.members(), context.slices, tensor.sequence);
  const bool are_all = !tensor.sequence;
  const auto rows = even_counts(are_all ? ranges : ranges * tensor.members(), context.shape.rows());
  const std::size_t first_range = are_all ? 0 : ranges * tensor.index();
  std::size_t first = 0;
  return sum_over_slices(context, ranges, are_all, count,
                         [&](std::size_t range, SumOf<typename X::Element>* values) {
                           add(first, rows[first_range + range], values);
                           first += rows[first_range + range];
                         });
}

}  // namespace troupe::apps::gpt
