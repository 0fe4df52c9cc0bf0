#pragma once

#include <cstddef>
#include <optional>
#include <type_traits>

#include "apps/gpt/model/block_context.hpp"
#include "apps/gpt/model/expert_layer.hpp"
#include "apps/gpt/model/parameters.hpp"
#include "apps/gpt/model/pass.hpp"
#include "apps/gpt/model/projection.hpp"
#include "apps/gpt/model/rows.hpp"
#include "apps/gpt/model/sequences.hpp"
#include "apps/gpt/model/weight_work.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

// N rows of this pass, C width, F feed_forward, H heads, K heads with keys of their own, D head size. X is
// the engine that computes, E its elements.

/// The rows that a bias is added to, if there is one.
struct LinearBias {
  std::size_t rows, width;
  std::optional<std::size_t> parameter;
};

template <class X, class E>
core::Result<void> add_bias(const X& engine, const Pass<E>& pass, const LinearBias& bias, E* y) {
  if (bias.parameter) engine.bias_forward(bias.rows, bias.width, TRY(pass.use(*bias.parameter)), y);
  return {};
}

/// d_y is what the weights' half of backward will find.
template <class X, class E>
core::Result<void> add_bias_gradient(const X& engine, const Pass<E>& pass, const LinearBias& bias,
                                     const E* d_y, SumOf<E>* partials) {
  if (!bias.parameter) return {};
  return use_and_add_to_gradient(pass, *bias.parameter, [=, &engine](const Pass<E>& at) {
    engine.bias_backward(bias.rows, bias.width, d_y, partials, at.gradient(*bias.parameter));
  });
}

/// The same for a bias that is added to a sum over slices: of these, each adds up its own rows.
template <class X, class E>
core::Result<void> add_output_bias_gradient(const BlockContext<X>& context, const Pass<E>& pass,
                                            const LinearBias& bias, const E* d_y, SumOf<E>* partials) {
  if (context.tensor == nullptr || !bias.parameter)
    return add_bias_gradient(context.engine, pass, bias, d_y, partials);
  const std::size_t C = bias.width;
  const auto of_rows = [=](std::size_t first, std::size_t rows, SumOf<E>* values) {
    context.engine.bias_backward(rows, C, d_y + first * C, partials, values);
  };
  return use_and_add_to_gradient(pass, *bias.parameter, [=](const Pass<E>& at) -> core::Result<void> {
    context.engine.add(TRY(sum_over_rows(context, C, of_rows)), at.gradient(*bias.parameter), C);
    return {};
  });
}

/// The rows of a norm, or of one of each head: layer norm if `mean` is not null, otherwise rms norm.
template <class E>
struct NormRows {
  std::size_t rows, width;
  SumOf<E> epsilon;
  const E* x;
  const E* weight;
  const E* bias;  ///< layer norm only; backward does not read it
  SumOf<E>* mean;
  SumOf<E>* scale;
};

template <class X, class E>
NormRows<E> norm_of(const BlockContext<X>& context, const E* x, const E* weight,
                    const std::type_identity_t<E>* bias, const NormActivations<E>& norm) {
  const auto epsilon = static_cast<SumOf<E>>(context.config.norm_epsilon);
  return {own_rows(context), context.config.width, epsilon, x, weight, bias, norm.mean, norm.scale};
}

/// The norm that the configuration names, from x to norm.output.
template <class X, class E>
core::Result<void> norm_forward(const BlockContext<X>& context, const NormParameters& parameters, const E* x,
                                const NormActivations<E>& norm, const Pass<E>& pass) {
  const E* weight = TRY(pass.use(parameters.weight));
  const E* bias = nullptr;
  if (parameters.bias) bias = TRY(pass.use(*parameters.bias));
  context.engine.norm_forward(norm_of(context, x, weight, bias, norm), norm.output);
  return {};
}

/// The same norm of fewer rows.
template <class E>
NormRows<E> some_rows(NormRows<E> norm, std::size_t first, std::size_t rows) {
  norm.rows = rows;
  norm.x += first * norm.width;
  norm.scale += first;
  if (norm.mean != nullptr) norm.mean += first;
  return norm;
}

/// Adds to d_weight and to d_bias, which may be null, from d_y (N, C): with slices, the sum of theirs.
template <class X, class E>
core::Result<void> add_norm_gradient(const BlockContext<X>& context, const NormRows<E>& norm, const E* d_y,
                                     SumOf<E>* d_weight, SumOf<E>* d_bias, SumOf<E>* partials) {
  const X& engine = context.engine;
  const std::size_t C = norm.width;
  if (context.tensor == nullptr) {
    engine.norm_backward_weight(norm, d_y, d_weight, d_bias, partials);
    return {};
  }
  const auto add = [&](std::size_t first, std::size_t rows, SumOf<E>* values) {
    engine.norm_backward_weight(some_rows(norm, first, rows), d_y + first * C, values,
                                d_bias == nullptr ? nullptr : values + C, partials);
  };
  const auto* sum = TRY(sum_over_rows(context, d_bias == nullptr ? C : 2 * C, add));
  engine.add(sum, d_weight, C);
  if (d_bias != nullptr) engine.add(sum + C, d_bias, C);
  return {};
}

/// Adds to d.residual, from d_y (N, C).
template <class X, class E>
core::Result<void> norm_backward(const BlockContext<X>& context, const NormParameters& parameters, const E* x,
                                 const NormActivations<E>& norm, const E* d_y, const GradientScratch<E>& d,
                                 const Pass<E>& pass) {
  const E* weight = TRY(pass.use(parameters.weight));
  const auto rows = norm_of(context, x, weight, nullptr, norm);
  const E* kept = kept_for_weights(pass, d_y, rows.rows * rows.width);
  const auto add = [=, partials = d.partials](const Pass<E>& at) -> core::Result<void> {
    SumOf<E>* d_bias = parameters.bias ? at.gradient(*parameters.bias) : nullptr;
    TRY(add_norm_gradient(context, rows, kept, at.gradient(parameters.weight), d_bias, partials));
    if (parameters.bias) at.ready(*parameters.bias);
    return {};
  };
  TRY(add_to_gradient(pass, parameters.weight, add));
  context.engine.norm_backward_input(rows, d_y, d.residual, Write::accumulate);
  return {};
}

/// The norm's output for all rows, where the weights' half of backward will find it too.
template <class X, class E>
core::Result<const E*> normed_rows_again(const BlockContext<X>& context, const NormActivations<E>& norm,
                                         const Pass<E>& pass) {
  const E* rows = TRY(all_rows<X>(context, norm.output));
  return kept_for_weights(pass, rows, context.shape.rows() * context.config.width, norm.output);
}

/// A gradient of rows that a block adds to the residual stream: for all rows, as above.
template <class X, class E>
core::Result<const E*> residual_gradient(const BlockContext<X>& context, const GradientScratch<E>& d,
                                         const Pass<E>& pass) {
  const E* rows = TRY(all_rows<X>(context, d.residual));
  return kept_for_weights(pass, rows, context.shape.rows() * context.config.width);
}

/// Up to block.hidden.
template <class X, class E>
core::Result<void> mlp_activations(const BlockContext<X>& context, const BlockParameters& parameters,
                                   const BlockActivations<E>& block, const Pass<E>& pass) {
  const std::size_t N = context.shape.rows(), C = context.config.width, F = context.config.feed_forward;
  const X& engine = context.engine;
  if (parameters.experts) return {};  // they are computed together with the experts' output
  const E* x = TRY(all_rows<X>(context, block.mlp_norm.output));
  if (parameters.gate) {
    TRY(project(context, pass, Sliced::outputs, {N, C, F}, *parameters.gate, x, block.gate));
    TRY(project(context, pass, Sliced::outputs, {N, C, F}, parameters.up, x, block.up));
    engine.swiglu_forward(N * F, block.gate, block.up, block.hidden);
  } else {
    TRY(project(context, pass, Sliced::outputs, {N, C, F}, parameters.up, x, block.up));
    engine.gelu_forward(N * F, block.up, block.hidden);
  }
  return {};
}

template <class X, class E>
core::Result<void> experts_into_residual(const BlockContext<X>& context, const BlockParameters& parameters,
                                         const BlockActivations<E>& block, const Pass<E>& pass, E* residual) {
  const E* x = TRY(all_rows<X>(context, block.mlp_norm.output));
  if (context.tensor == nullptr)
    return expert_layer_forward(context, *parameters.experts, block.experts, x, pass, residual);
  context.engine.zero(context.tensor->partial, context.shape.rows() * context.slices * context.config.width);
  TRY(expert_layer_forward(context, *parameters.experts, block.experts, x, pass, context.tensor->partial));
  return add_summed_rows(context, residual, Terms::by_row);
}

template <class X, class E>
core::Result<void> experts_backward(const BlockContext<X>& context, const BlockParameters& parameters,
                                    const BlockActivations<E>& block, const GradientScratch<E>& d,
                                    const Pass<E>& pass) {
  const E* d_output = TRY(all_rows<X>(context, d.residual));
  if (d_output != d.residual) {
    context.engine.copy(d_output, context.tensor->again, context.shape.rows() * context.config.width);
    d_output = context.tensor->again;
  }
  const E* x = TRY(normed_rows_again(context, block.mlp_norm, pass));
  return expert_layer_backward(context, *parameters.experts, block.experts, d.experts,
                               ExpertGradient<E>{x, d_output}, pass, d.normed);
}

template <class X, class E>
core::Result<void> mlp_backward(const BlockContext<X>& context, const BlockParameters& parameters,
                                const BlockActivations<E>& block, const GradientScratch<E>& d,
                                const Pass<E>& pass) {
  const std::size_t N = context.shape.rows(), C = context.config.width, F = context.config.feed_forward;
  const X& engine = context.engine;
  if (parameters.experts) return experts_backward(context, parameters, block, d, pass);
  const E* d_output = TRY(residual_gradient(context, d, pass));
  TRY(project_backward(context, pass, Sliced::inputs, {N, F, C}, parameters.down, block.hidden, d_output,
                       d.hidden, Write::overwrite));
  const E* x = TRY(normed_rows_again(context, block.mlp_norm, pass));
  const LinearShape inner{N, C, F};
  if (parameters.gate) {
    engine.swiglu_backward(N * F, block.gate, block.up, d.hidden, d.gate, d.up);
  } else {
    engine.gelu_backward(N * F, block.up, d.hidden, d.up);
  }
  TRY(project_backward(context, pass, Sliced::outputs, inner, parameters.up, x, d.up, d.normed,
                       Write::overwrite));
  if (!parameters.gate) return {};
  return project_backward(context, pass, Sliced::outputs, inner, *parameters.gate, x, d.gate, d.normed,
                          Write::accumulate);
}

/// Queries or keys of `heads` heads: their place in the block, and the parameters that produce them.
template <class E>
struct HeadSide {
  std::size_t heads;
  std::size_t weight;
  std::optional<std::size_t> bias, norm;
  HeadNormActivations<E> before;
  E* output;
};

template <class E>
HeadSide<E> query_side(const ModelConfig& config, const BlockParameters& parameters,
                       const BlockActivations<E>& block) {
  return {config.heads,          parameters.query, parameters.query_bias,
          parameters.query_norm, block.query_norm, block.query};
}

template <class E>
HeadSide<E> key_side(const ModelConfig& config, const BlockParameters& parameters,
                     const BlockActivations<E>& block) {
  return {config.key_heads(),  parameters.key, parameters.key_bias,
          parameters.key_norm, block.key_norm, block.key};
}

template <class X, class E>
NormRows<E> head_norm_of(const BlockContext<X>& context, const HeadSide<E>& side, const E* weight) {
  return {.rows = context.shape.rows() * side.heads,
          .width = context.config.head_size(),
          .epsilon = static_cast<SumOf<E>>(context.config.norm_epsilon),
          .x = side.before.input,
          .weight = weight,
          .bias = nullptr,
          .mean = nullptr,
          .scale = side.before.scale};
}

template <class X, class E>
core::Result<void> head_projection(const BlockContext<X>& context, const HeadSide<E>& side, const E* x,
                                   const Pass<E>& pass) {
  const std::size_t N = context.shape.rows(), width = side.heads * context.config.head_size();
  E* y = side.norm ? side.before.input : side.output;
  TRY(project(context, pass, Sliced::outputs, {N, context.config.width, width}, side.weight, x, y));
  return add_bias(context.engine, pass, {N, width, side.bias}, y);
}

template <class X, class E>
core::Result<void> head_norm_forward(const BlockContext<X>& context, const HeadSide<E>& side,
                                     const Pass<E>& pass) {
  if (!side.norm) return {};
  const E* weight = TRY(pass.use(*side.norm));
  context.engine.norm_forward(head_norm_of(context, side, weight), side.output);
  return {};
}

/// Adds to the gradient of the weight of a norm of each head. Slices have different heads.
template <class X, class E>
core::Result<void> add_head_norm_gradient(const BlockContext<X>& context, const NormRows<E>& norm,
                                          std::size_t heads, const E* d_y, SumOf<E>* d_weight,
                                          SumOf<E>* partials) {
  const X& engine = context.engine;
  const std::size_t D = norm.width, slices = context.slices, of_slice = heads / slices;
  const auto add = [&](std::size_t slice, SumOf<E>* values) {
    if (slices == 1) return engine.norm_backward_weight(norm, d_y, values, nullptr, partials);
    for (std::size_t first = slice * of_slice; first < norm.rows; first += heads)
      engine.norm_backward_weight(some_rows(norm, first, of_slice), d_y + first * D, values, nullptr,
                                  partials);
  };
  if (context.tensor == nullptr) {
    add(0, d_weight);
  } else {
    engine.add(TRY(sum_over_slices(context, slices, false, D, add)), d_weight, D);
  }
  return {};
}

/// From the gradient with respect to the heads before their rotation to those of the parameters, and to
/// d.normed.
template <class X, class E>
core::Result<void> head_backward(const BlockContext<X>& context, const HeadSide<E>& side, const E* x,
                                 const GradientScratch<E>& d, E* d_heads, const Pass<E>& pass) {
  const std::size_t N = context.shape.rows(), C = context.config.width;
  const std::size_t width = side.heads * context.config.head_size();
  const X& engine = context.engine;
  if (side.norm) {
    const E* weight = TRY(pass.use(*side.norm));
    const auto norm = head_norm_of(context, side, weight);
    const E* d_normed = kept_for_weights(pass, d_heads, N * width);
    TRY(use_and_add_to_gradient(
        pass, *side.norm,
        [=, heads = side.heads, parameter = *side.norm, partials = d.partials](const Pass<E>& at) {
          return add_head_norm_gradient(context, norm, heads, d_normed, at.gradient(parameter), partials);
        }));
    engine.norm_backward_input(norm, d_heads, d_heads, Write::overwrite);
  }
  TRY(add_bias_gradient(engine, pass, {N, width, side.bias}, d_heads, d.partials));
  return project_backward(context, pass, Sliced::outputs, {N, C, width}, side.weight, x, d_heads, d.normed,
                          Write::accumulate);
}

template <class X, class E>
core::Result<void> self_attention_forward(const BlockContext<X>& context, const BlockParameters& parameters,
                                          const BlockActivations<E>& block, const Pass<E>& pass) {
  const ModelConfig& config = context.config;
  const std::size_t N = context.shape.rows(), C = config.width, K = config.key_width();
  const X& engine = context.engine;
  const auto query = query_side(config, parameters, block), key = key_side(config, parameters, block);
  const E* x = TRY(all_rows<X>(context, block.attention_norm.output));
  TRY(head_projection(context, query, x, pass));
  TRY(head_projection(context, key, x, pass));
  TRY(project(context, pass, Sliced::outputs, {N, C, K}, parameters.value, x, block.value));
  TRY(add_bias(engine, pass, {N, K, parameters.value_bias}, block.value));
  TRY(head_norm_forward(context, query, pass));
  TRY(head_norm_forward(context, key, pass));
  engine.rotate(config, context.shape, 1, block.query, block.key);
  TRY(attend(context, block));
  engine.copy(block.input, block.middle, own_rows(context) * C);
  TRY(project_into_residual<X>(context, pass, config.query_width(), parameters.output, block.attention,
                               block.middle));
  return add_bias(engine, pass, {own_rows(context), C, parameters.output_bias}, block.middle);
}

template <class X, class E>
core::Result<void> self_attention_backward(const BlockContext<X>& context, const BlockParameters& parameters,
                                           const BlockActivations<E>& block, const GradientScratch<E>& d,
                                           const Pass<E>& pass) {
  const ModelConfig& config = context.config;
  const std::size_t N = context.shape.rows(), C = config.width, K = config.key_width();
  const std::size_t own = own_rows(context);
  const X& engine = context.engine;
  if (parameters.output_bias) {
    const E* d_own = kept_for_weights(pass, d.residual, own * C);
    TRY(add_output_bias_gradient(context, pass, {own, C, parameters.output_bias}, d_own, d.partials));
  }
  const E* d_output = TRY(residual_gradient(context, d, pass));
  TRY(project_backward(context, pass, Sliced::inputs, {N, config.query_width(), C}, parameters.output,
                       block.attention, d_output, d.attention, Write::overwrite));
  TRY(attend_backward(context, block, d));
  engine.rotate(config, context.shape, -1, d.query, d.key);
  TRY(add_bias_gradient(engine, pass, {N, K, parameters.value_bias}, d.value, d.partials));
  const E* x = TRY(normed_rows_again(context, block.attention_norm, pass));
  TRY(project_backward(context, pass, Sliced::outputs, {N, C, K}, parameters.value, x, d.value, d.normed,
                       Write::overwrite));
  TRY(head_backward(context, key_side(config, parameters, block), x, d, d.key, pass));
  return head_backward(context, query_side(config, parameters, block), x, d, d.query, pass);
}

/// With the block's own memory for what the weights' half of its backward reads.
template <class X, class E>
GradientScratch<E> scratch_for_weights(const BlockContext<X>& context, const BlockParameters& parameters,
                                       GradientScratch<E> d, const Pass<E>& pass) {
  const std::size_t N = context.shape.rows(), F = context.config.feed_forward;
  d.query = place_for_weights(pass, d.query, N * context.config.query_width());
  d.key = place_for_weights(pass, d.key, N * context.config.key_width());
  d.value = place_for_weights(pass, d.value, N * context.config.key_width());
  if (parameters.gate) d.gate = place_for_weights(pass, d.gate, N * F);
  if (!parameters.experts) d.up = place_for_weights(pass, d.up, N * F);
  return d;
}

/// Recomputes from block.input what block_forward() leaves in the block for backward, and nothing else.
template <class X, class E>
core::Result<void> block_activations(const BlockContext<X>& context, const BlockParameters& parameters,
                                     const BlockActivations<E>& block, const Pass<E>& pass) {
  TRY(norm_forward(context, parameters.attention_norm, block.input, block.attention_norm, pass));
  TRY(self_attention_forward(context, parameters, block, pass));
  TRY(norm_forward(context, parameters.mlp_norm, block.middle, block.mlp_norm, pass));
  return mlp_activations(context, parameters, block, pass);
}

/// output (N, C) = the residual stream after the block, from block.input.
template <class X, class E>
core::Result<void> block_forward(const BlockContext<X>& context, const BlockParameters& parameters,
                                 const BlockActivations<E>& block, const Pass<E>& pass, E* output) {
  TRY(block_activations(context, parameters, block, pass));
  context.engine.copy(block.middle, output, own_rows(context) * context.config.width);
  if (parameters.experts) return experts_into_residual(context, parameters, block, pass, output);
  return project_into_residual<X>(context, pass, context.config.feed_forward, parameters.down, block.hidden,
                                  output);
}

/// Turns scratch.residual from the gradient with respect to the block's output into that with respect to its
/// input. What the pass defers has copies of the context, and reads the activations.
template <class X, class E>
core::Result<void> block_backward(const BlockContext<X>& context, const BlockParameters& parameters,
                                  const BlockActivations<E>& block, const GradientScratch<E>& scratch,
                                  const Pass<E>& pass) {
  const auto d = scratch_for_weights(context, parameters, scratch, pass);
  TRY(mlp_backward(context, parameters, block, d, pass));
  const Terms terms = parameters.experts ? Terms::by_row : Terms::apart;
  const E* d_normed = TRY(summed_rows<X>(context, d.normed, terms));
  TRY(norm_backward(context, parameters.mlp_norm, block.middle, block.mlp_norm, d_normed, d, pass));
  TRY(self_attention_backward(context, parameters, block, d, pass));
  d_normed = TRY(summed_rows<X>(context, d.normed));
  return norm_backward(context, parameters.attention_norm, block.input, block.attention_norm, d_normed, d,
                       pass);
}

}  // namespace troupe::apps::gpt
