#include "apps/gpt/model/block.hpp"

#include <algorithm>

#include "apps/gpt/layers/activation.hpp"
#include "apps/gpt/layers/attention.hpp"
#include "apps/gpt/layers/bias.hpp"
#include "apps/gpt/layers/layer_norm.hpp"
#include "apps/gpt/layers/rms_norm.hpp"
#include "apps/gpt/model/expert_layer.hpp"
#include "apps/gpt/model/projection.hpp"
#include "apps/gpt/model/weight_work.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

// N rows of this pass, C width, F feed_forward, H heads, K heads with keys of their own, D head size.

using core::Result;

namespace {

template <class T>
AttentionShape attention_shape(const BlockContext<T>& context) {
  return {context.shape.batch, context.shape.length, context.config.heads, context.config.head_size(),
          context.config.key_heads()};
}

template <class T>
Attention<T> attention_of(const BlockContext<T>& context, const BlockActivations<T>& block) {
  return {attention_shape(context), block.query, block.key, block.value, block.probabilities};
}

template <class T>
Result<void> attend(const BlockContext<T>& context, const BlockActivations<T>& block) {
  const auto attention = attention_of(context, block);
  if (context.across != nullptr)
    return context_attention_forward(*context.across, attention, block.attention);
  attention_forward(attention, block.attention);
  return {};
}

template <class T>
Result<void> attend_backward(const BlockContext<T>& context, const BlockActivations<T>& block,
                             const GradientScratch<T>& d) {
  const auto attention = attention_of(context, block);
  const AttentionGradients<T> gradients{d.query, d.key, d.value, d.probabilities};
  if (context.across != nullptr)
    return context_attention_backward<T>(*context.across, attention, d.attention, gradients);
  attention_backward<T>(attention, d.attention, gradients);
  return {};
}

template <class T>
Result<void> add_bias(const Pass<T>& pass, std::size_t rows, std::size_t width,
                      std::optional<std::size_t> bias, T* y) {
  if (bias) bias_forward(rows, width, TRY(pass.use(*bias)), y);
  return {};
}

template <class T>
Result<void> add_bias_gradient(const Pass<T>& pass, std::size_t rows, std::size_t width,
                               std::optional<std::size_t> bias, const T* d_y) {
  if (!bias) return {};
  const T* kept = kept_for_weights(pass, d_y, rows * width);
  return use_and_add_to_gradient(
      pass, *bias, [=](const Pass<T>& at) { bias_backward(rows, width, kept, at.gradient(*bias)); });
}

// The norm's output for all rows, as read by products that a group shares by columns.
template <class T>
Result<const T*> normed_rows(const BlockContext<T>& context, const NormActivations<T>& norm) {
  return all_rows(context.tensor, context.shape.rows(), context.config.width, norm.output);
}

// The same in backward, also for the weights' half of it.
template <class T>
Result<const T*> normed_rows_again(const BlockContext<T>& context, const NormActivations<T>& norm,
                                   const Pass<T>& pass) {
  const T* rows = TRY(normed_rows(context, norm));
  return kept_for_weights(pass, rows, context.shape.rows() * context.config.width, norm.output);
}

// residual += the sum of all members' partial rows.
template <class T>
Result<void> add_sum(const BlockContext<T>& context, T* residual) {
  const std::size_t N = context.shape.rows(), C = context.config.width;
  const T* sum = TRY(summed_rows(context.tensor, N, C, context.tensor->partial));
  const std::size_t elements = own_rows(context.tensor, N) * C;
  for (std::size_t i = 0; i < elements; ++i) residual[i] += sum[i];
  return {};
}

// residual += x * weight^T, summed over the ranks that share the product by rows, each with one part of x.
template <class T>
Result<void> project_into_residual(const BlockContext<T>& context, const Pass<T>& pass, std::size_t in,
                                   std::size_t weight, const T* x, T* residual) {
  const std::size_t N = context.shape.rows(), C = context.config.width;
  if (context.tensor == nullptr) return project(pass, {N, in, C}, weight, x, residual, Write::accumulate);
  TRY(project(pass, {N, in, C}, weight, x, context.tensor->partial));
  return add_sum(context, residual);
}

// Up to block.hidden.
template <class T>
Result<void> mlp_activations(const BlockContext<T>& context, const BlockParameters& parameters,
                             const BlockActivations<T>& block, const Pass<T>& pass) {
  const std::size_t N = context.shape.rows(), C = context.config.width, F = context.config.feed_forward;
  if (parameters.experts) return {};  // they are computed together with the experts' output
  const T* x = TRY(normed_rows(context, block.mlp_norm));
  if (parameters.gate) {
    TRY(project(pass, {N, C, F}, *parameters.gate, x, block.gate));
    TRY(project(pass, {N, C, F}, parameters.up, x, block.up));
    swiglu_forward(N * F, block.gate, block.up, block.hidden);
  } else {
    TRY(project(pass, {N, C, F}, parameters.up, x, block.up));
    gelu_forward(N * F, block.up, block.hidden);
  }
  return {};
}

template <class T>
ExpertShape<T> expert_shape(const BlockContext<T>& context) {
  const bool is_first = context.tensor == nullptr || context.tensor->group->index() == 0;
  return {context.config.experts, context.shape.rows(), context.config.width, is_first,
          context.shape.batch,    context.across};
}

template <class T>
Result<void> experts_into_residual(const BlockContext<T>& context, const BlockParameters& parameters,
                                   const BlockActivations<T>& block, const Pass<T>& pass, T* residual) {
  const T* x = TRY(normed_rows(context, block.mlp_norm));
  const auto add_to = [&](T* to) {
    return expert_layer_forward<T>(expert_shape(context), *parameters.experts, block.experts, x, pass, to);
  };
  if (context.tensor == nullptr) return add_to(residual);
  std::fill_n(context.tensor->partial, context.shape.rows() * context.config.width, T{0});
  TRY(add_to(context.tensor->partial));
  return add_sum(context, residual);
}

template <class T>
Result<void> experts_backward(const BlockContext<T>& context, const BlockParameters& parameters,
                              const BlockActivations<T>& block, const GradientScratch<T>& d,
                              const Pass<T>& pass) {
  const std::size_t N = context.shape.rows(), C = context.config.width;
  const T* d_output = TRY(all_rows<T>(context.tensor, N, C, d.residual));
  if (d_output != d.residual) d_output = std::copy_n(d_output, N * C, context.tensor->again) - N * C;
  const T* x = TRY(normed_rows_again(context, block.mlp_norm, pass));
  return expert_layer_backward<T>(expert_shape(context), *parameters.experts, block.experts, d.experts,
                                  {x, d_output}, pass, d.normed);
}

template <class T>
Result<void> mlp_backward(const BlockContext<T>& context, const BlockParameters& parameters,
                          const BlockActivations<T>& block, const GradientScratch<T>& d,
                          const Pass<T>& pass) {
  const std::size_t N = context.shape.rows(), C = context.config.width, F = context.config.feed_forward;
  if (parameters.experts) return experts_backward(context, parameters, block, d, pass);
  const T* d_output = TRY(all_rows<T>(context.tensor, N, C, d.residual));
  TRY(project_backward(pass, {N, F, C}, parameters.down, block.hidden, d_output, d.hidden, Write::overwrite));
  const T* x = TRY(normed_rows_again(context, block.mlp_norm, pass));
  if (parameters.gate) {
    swiglu_backward(N * F, block.gate, block.up, d.hidden, d.gate, d.up);
    TRY(project_backward(pass, {N, C, F}, parameters.up, x, d.up, d.normed, Write::overwrite));
    return project_backward(pass, {N, C, F}, *parameters.gate, x, d.gate, d.normed, Write::accumulate);
  }
  gelu_backward(N * F, block.up, d.hidden, d.up);
  return project_backward(pass, {N, C, F}, parameters.up, x, d.up, d.normed, Write::overwrite);
}

// Queries or keys of `heads` heads: their place in the block, and the parameters that produce them.
template <class T>
struct HeadSide {
  std::size_t heads;
  std::size_t weight;
  std::optional<std::size_t> bias, norm;
  HeadNormActivations<T> before;
  T* output;
};

template <class T>
HeadSide<T> query_side(const BlockContext<T>& context, const BlockParameters& parameters,
                       const BlockActivations<T>& block) {
  return {context.config.heads,  parameters.query, parameters.query_bias,
          parameters.query_norm, block.query_norm, block.query};
}

template <class T>
HeadSide<T> key_side(const BlockContext<T>& context, const BlockParameters& parameters,
                     const BlockActivations<T>& block) {
  return {context.config.key_heads(), parameters.key, parameters.key_bias,
          parameters.key_norm,        block.key_norm, block.key};
}

template <class T>
Result<void> head_projection(const BlockContext<T>& context, const HeadSide<T>& side, const T* x,
                             const Pass<T>& pass) {
  const std::size_t N = context.shape.rows(), width = side.heads * context.config.head_size();
  T* y = side.norm ? side.before.input : side.output;
  TRY(project(pass, {N, context.config.width, width}, side.weight, x, y));
  return add_bias(pass, N, width, side.bias, y);
}

// The norm, if there is one, and the rotation.
template <class T>
Result<void> head_finish(const BlockContext<T>& context, const HeadSide<T>& side, const Pass<T>& pass) {
  const auto [batch, length] = context.shape;
  if (side.norm) {
    const T epsilon = static_cast<T>(context.config.norm_epsilon);
    const T* weight = TRY(pass.use(*side.norm));
    rms_norm_forward<T>({batch * length * side.heads, context.config.head_size(), epsilon, side.before.input,
                         weight, side.before.scale},
                        side.output);
  }
  context.rotary.forward(batch, length, side.heads, side.output);
  return {};
}

// Adds to d_x and to the norm's gradient.
template <class T>
Result<void> head_norm_gradient(const Pass<T>& pass, RmsNorm<T> norm, std::size_t parameter, const T* d_y,
                                T* d_x) {
  norm.weight = TRY(pass.use(parameter));
  rms_norm_backward(norm, d_y, d_x, pass.gradient(parameter));
  pass.ready(parameter);
  return {};
}

// From the gradient with respect to the rotated heads of x to those of the parameters, and to d.normed.
template <class T>
Result<void> head_backward(const BlockContext<T>& context, const HeadSide<T>& side, const T* x,
                           const GradientScratch<T>& d, T* d_heads, const Pass<T>& pass) {
  const auto [batch, length] = context.shape;
  const std::size_t N = batch * length, D = context.config.head_size(), width = side.heads * D;
  context.rotary.backward(batch, length, side.heads, d_heads);
  if (side.norm) {
    std::fill_n(d.before_norm, N * width, T{0});
    const T epsilon = static_cast<T>(context.config.norm_epsilon);
    const T* weight = TRY(pass.use(*side.norm));
    const RmsNorm<T> norm{N * side.heads, D, epsilon, side.before.input, weight, side.before.scale};
    if (pass.later != nullptr) {
      rms_norm_backward(norm, d_heads, d.before_norm, pass.later->unused(D));
      pass.later->add([=, &later = *pass.later, parameter = *side.norm,
                       kept = pass.later->keep(d_heads, N * width)](const Pass<T>& at) {
        return head_norm_gradient(at, norm, parameter, kept, later.unused(N * width));
      });
    } else {
      TRY(head_norm_gradient(pass, norm, *side.norm, d_heads, d.before_norm));
    }
    d_heads = d.before_norm;
  }
  TRY(add_bias_gradient(pass, N, width, side.bias, d_heads));
  return project_backward(pass, {N, context.config.width, width}, side.weight, x, d_heads, d.normed,
                          Write::accumulate);
}

template <class T>
Result<void> self_attention_forward(const BlockContext<T>& context, const BlockParameters& parameters,
                                    const BlockActivations<T>& block, const Pass<T>& pass) {
  const std::size_t N = context.shape.rows(), C = context.config.width;
  const std::size_t Q = context.config.query_width(), K = context.config.key_width();
  const auto query = query_side(context, parameters, block), key = key_side(context, parameters, block);
  const T* x = TRY(normed_rows(context, block.attention_norm));
  TRY(head_projection(context, query, x, pass));
  TRY(head_projection(context, key, x, pass));
  TRY(project(pass, {N, C, K}, parameters.value, x, block.value));
  TRY(add_bias(pass, N, K, parameters.value_bias, block.value));
  TRY(head_finish(context, query, pass));
  TRY(head_finish(context, key, pass));
  TRY(attend(context, block));
  const std::size_t own = own_rows(context.tensor, N);
  std::copy_n(block.input, own * C, block.middle);
  TRY(project_into_residual(context, pass, Q, parameters.output, block.attention, block.middle));
  return add_bias(pass, own, C, parameters.output_bias, block.middle);
}

template <class T>
Result<void> self_attention_backward(const BlockContext<T>& context, const BlockParameters& parameters,
                                     const BlockActivations<T>& block, const GradientScratch<T>& d,
                                     const Pass<T>& pass) {
  const std::size_t N = context.shape.rows(), C = context.config.width;
  const std::size_t Q = context.config.query_width(), K = context.config.key_width();
  TRY(add_bias_gradient(pass, own_rows(context.tensor, N), C, parameters.output_bias, d.residual));
  const T* d_output = TRY(all_rows<T>(context.tensor, N, C, d.residual));
  TRY(project_backward(pass, {N, Q, C}, parameters.output, block.attention, d_output, d.attention,
                       Write::overwrite));
  TRY(attend_backward(context, block, d));
  TRY(add_bias_gradient(pass, N, K, parameters.value_bias, d.value));
  const T* x = TRY(normed_rows_again(context, block.attention_norm, pass));
  TRY(project_backward(pass, {N, C, K}, parameters.value, x, d.value, d.normed, Write::overwrite));
  TRY(head_backward(context, key_side(context, parameters, block), x, d, d.key, pass));
  return head_backward(context, query_side(context, parameters, block), x, d, d.query, pass);
}

}  // namespace

template <class T>
Result<void> norm_forward(const BlockContext<T>& context, const NormParameters& parameters, const T* x,
                          const NormActivations<T>& norm, const Pass<T>& pass) {
  const std::size_t N = own_rows(context.tensor, context.shape.rows()), C = context.config.width;
  const T epsilon = static_cast<T>(context.config.norm_epsilon);
  const T* weight = TRY(pass.use(parameters.weight));
  if (parameters.bias) {
    const T* bias = TRY(pass.use(*parameters.bias));
    layer_norm_forward<T>({N, C, epsilon, x, weight, bias, norm.mean, norm.scale}, norm.output);
  } else {
    rms_norm_forward<T>({N, C, epsilon, x, weight, norm.scale}, norm.output);
  }
  return {};
}

template <class T>
Result<void> norm_backward(const BlockContext<T>& context, const NormParameters& parameters, const T* x,
                           const NormActivations<T>& norm, const Pass<T>& pass, const T* d_y, T* d_x) {
  const std::size_t N = own_rows(context.tensor, context.shape.rows()), C = context.config.width;
  const T epsilon = static_cast<T>(context.config.norm_epsilon);
  const T* weight = TRY(pass.use(parameters.weight));
  const auto backward = [&](T* to, T* d_weight, T* d_bias) {
    if (parameters.bias) {
      layer_norm_backward<T>({N, C, epsilon, x, weight, nullptr, norm.mean, norm.scale}, d_y, to, d_weight,
                             d_bias);
    } else {
      rms_norm_backward<T>({N, C, epsilon, x, weight, norm.scale}, d_y, to, d_weight);
    }
  };
  if (pass.later != nullptr) {
    T* unused = pass.later->unused(2 * C);
    backward(d_x, unused, unused + C);
    pass.later->add([=, &later = *pass.later, kept = pass.later->keep(d_y, N * C)](const Pass<T>& at) {
      return norm_backward(context, parameters, x, norm, at, kept, later.unused(N * C));
    });
    return {};
  }
  backward(d_x, pass.gradient(parameters.weight),
           parameters.bias ? pass.gradient(*parameters.bias) : nullptr);
  if (parameters.bias) pass.ready(*parameters.bias);
  pass.ready(parameters.weight);
  return {};
}

template <class T>
Result<void> block_activations(const BlockContext<T>& context, const BlockParameters& parameters,
                               const BlockActivations<T>& block, const Pass<T>& pass) {
  TRY(norm_forward(context, parameters.attention_norm, block.input, block.attention_norm, pass));
  TRY(self_attention_forward(context, parameters, block, pass));
  TRY(norm_forward(context, parameters.mlp_norm, block.middle, block.mlp_norm, pass));
  return mlp_activations(context, parameters, block, pass);
}

template <class T>
Result<void> block_forward(const BlockContext<T>& context, const BlockParameters& parameters,
                           const BlockActivations<T>& block, const Pass<T>& pass, T* output) {
  const std::size_t N = context.shape.rows(), C = context.config.width;
  TRY(block_activations(context, parameters, block, pass));
  std::copy_n(block.middle, own_rows(context.tensor, N) * C, output);
  if (parameters.experts) return experts_into_residual(context, parameters, block, pass, output);
  return project_into_residual(context, pass, context.config.feed_forward, parameters.down, block.hidden,
                               output);
}

template <class T>
Result<void> block_backward(const BlockContext<T>& context, const BlockParameters& parameters,
                            const BlockActivations<T>& block, const GradientScratch<T>& d,
                            const Pass<T>& pass) {
  const std::size_t N = context.shape.rows(), C = context.config.width;
  TRY(mlp_backward(context, parameters, block, d, pass));
  const T* d_normed = TRY(summed_rows(context.tensor, N, C, d.normed));
  TRY(norm_backward(context, parameters.mlp_norm, block.middle, block.mlp_norm, pass, d_normed, d.residual));
  TRY(self_attention_backward(context, parameters, block, d, pass));
  d_normed = TRY(summed_rows(context.tensor, N, C, d.normed));
  return norm_backward(context, parameters.attention_norm, block.input, block.attention_norm, pass, d_normed,
                       d.residual);
}

template Result<void> block_forward<float>(const BlockContext<float>&, const BlockParameters&,
                                           const BlockActivations<float>&, const Pass<float>&, float*);
template Result<void> block_forward<double>(const BlockContext<double>&, const BlockParameters&,
                                            const BlockActivations<double>&, const Pass<double>&, double*);
template Result<void> block_activations<float>(const BlockContext<float>&, const BlockParameters&,
                                               const BlockActivations<float>&, const Pass<float>&);
template Result<void> block_activations<double>(const BlockContext<double>&, const BlockParameters&,
                                                const BlockActivations<double>&, const Pass<double>&);
template Result<void> block_backward<float>(const BlockContext<float>&, const BlockParameters&,
                                            const BlockActivations<float>&, const GradientScratch<float>&,
                                            const Pass<float>&);
template Result<void> block_backward<double>(const BlockContext<double>&, const BlockParameters&,
                                             const BlockActivations<double>&, const GradientScratch<double>&,
                                             const Pass<double>&);
template Result<void> norm_forward<float>(const BlockContext<float>&, const NormParameters&, const float*,
                                          const NormActivations<float>&, const Pass<float>&);
template Result<void> norm_forward<double>(const BlockContext<double>&, const NormParameters&, const double*,
                                           const NormActivations<double>&, const Pass<double>&);
template Result<void> norm_backward<float>(const BlockContext<float>&, const NormParameters&, const float*,
                                           const NormActivations<float>&, const Pass<float>&, const float*,
                                           float*);
template Result<void> norm_backward<double>(const BlockContext<double>&, const NormParameters&, const double*,
                                            const NormActivations<double>&, const Pass<double>&,
                                            const double*, double*);

}  // namespace troupe::apps::gpt
