#include "apps/gpt/block.hpp"

#include <algorithm>

#include "apps/gpt/layers/activation.hpp"
#include "apps/gpt/layers/attention.hpp"
#include "apps/gpt/layers/layer_norm.hpp"
#include "apps/gpt/layers/matmul.hpp"
#include "apps/gpt/layers/rms_norm.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

// N rows of this pass, C width, F feed_forward.

using core::Result;

namespace {

template <class T>
AttentionShape attention_shape(const BlockContext<T>& context) {
  return {context.shape.batch, context.shape.length, context.config.heads, context.config.head_size()};
}

template <class T>
Attention<T> attention_of(const BlockContext<T>& context, const BlockActivations<T>& block) {
  return {attention_shape(context), block.query, block.key, block.value, block.probabilities};
}

// y (N, out) (+)= x (N, in) * weight^T
template <class T>
Result<void> project(const Pass<T>& pass, LinearShape shape, std::size_t weight, const T* x, T* y,
                     Write write = Write::overwrite) {
  linear_forward(shape, x, TRY(pass.use(weight)), y, write);
  return {};
}

// d_x (N, in) (+)= d_y (N, out) * weight, and the weight's own gradient, which is complete then.
template <class T>
Result<void> project_backward(const Pass<T>& pass, LinearShape shape, std::size_t weight, const T* x,
                              const T* d_y, T* d_x, Write write) {
  const T* values = TRY(pass.use(weight));
  linear_backward_weight(shape, d_y, x, pass.gradient(weight));
  pass.ready(weight);
  linear_backward_input(shape, d_y, values, d_x, write);
  return {};
}

template <class T>
Result<void> mlp_forward(const BlockContext<T>& context, const BlockParameters& parameters,
                         const BlockActivations<T>& block, const Pass<T>& pass, T* output) {
  const std::size_t N = context.shape.rows(), C = context.config.width, F = context.config.feed_forward;
  const T* x = block.mlp_norm.output;
  if (parameters.gate) {
    TRY(project(pass, {N, C, F}, *parameters.gate, x, block.gate));
    TRY(project(pass, {N, C, F}, parameters.up, x, block.up));
    swiglu_forward(N * F, block.gate, block.up, block.hidden);
  } else {
    TRY(project(pass, {N, C, F}, parameters.up, x, block.up));
    gelu_forward(N * F, block.up, block.hidden);
  }
  return project(pass, {N, F, C}, parameters.down, block.hidden, output, Write::accumulate);
}

template <class T>
Result<void> mlp_backward(const BlockContext<T>& context, const BlockParameters& parameters,
                          const BlockActivations<T>& block, const GradientScratch<T>& d,
                          const Pass<T>& pass) {
  const std::size_t N = context.shape.rows(), C = context.config.width, F = context.config.feed_forward;
  const T* x = block.mlp_norm.output;
  TRY(project_backward(pass, {N, F, C}, parameters.down, block.hidden, d.residual, d.hidden,
                       Write::overwrite));
  if (parameters.gate) {
    swiglu_backward(N * F, block.gate, block.up, d.hidden, d.gate, d.up);
    TRY(project_backward(pass, {N, C, F}, parameters.up, x, d.up, d.normed, Write::overwrite));
    return project_backward(pass, {N, C, F}, *parameters.gate, x, d.gate, d.normed, Write::accumulate);
  }
  gelu_backward(N * F, block.up, d.hidden, d.up);
  return project_backward(pass, {N, C, F}, parameters.up, x, d.up, d.normed, Write::overwrite);
}

template <class T>
Result<void> self_attention_backward(const BlockContext<T>& context, const BlockParameters& parameters,
                                     const BlockActivations<T>& block, const GradientScratch<T>& d,
                                     const Pass<T>& pass) {
  const auto [B, L, H, D] = attention_shape(context);
  const LinearShape square{B * L, H * D, H * D};
  const T* x = block.attention_norm.output;
  TRY(project_backward(pass, square, parameters.output, block.attention, d.residual, d.attention,
                       Write::overwrite));
  attention_backward(attention_of(context, block), d.attention, {d.query, d.key, d.value, d.probabilities});
  context.rotary.backward(B, L, H, d.query);
  context.rotary.backward(B, L, H, d.key);
  TRY(project_backward(pass, square, parameters.value, x, d.value, d.normed, Write::overwrite));
  TRY(project_backward(pass, square, parameters.key, x, d.key, d.normed, Write::accumulate));
  return project_backward(pass, square, parameters.query, x, d.query, d.normed, Write::accumulate);
}

}  // namespace

template <class T>
Result<void> norm_forward(const BlockContext<T>& context, const NormParameters& parameters, const T* x,
                          const NormActivations<T>& norm, const Pass<T>& pass) {
  const std::size_t N = context.shape.rows(), C = context.config.width;
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
  const std::size_t N = context.shape.rows(), C = context.config.width;
  const T epsilon = static_cast<T>(context.config.norm_epsilon);
  const T* weight = TRY(pass.use(parameters.weight));
  T* d_weight = pass.gradient(parameters.weight);
  if (parameters.bias) {
    layer_norm_backward<T>({N, C, epsilon, x, weight, nullptr, norm.mean, norm.scale}, d_y, d_x, d_weight,
                           pass.gradient(*parameters.bias));
    pass.ready(*parameters.bias);
  } else {
    rms_norm_backward<T>({N, C, epsilon, x, weight, norm.scale}, d_y, d_x, d_weight);
  }
  pass.ready(parameters.weight);
  return {};
}

template <class T>
Result<void> block_forward(const BlockContext<T>& context, const BlockParameters& parameters,
                           const BlockActivations<T>& block, const Pass<T>& pass, T* output) {
  const auto [B, L, H, D] = attention_shape(context);
  const std::size_t N = B * L, C = H * D;
  const LinearShape square{N, C, C};

  TRY(norm_forward(context, parameters.attention_norm, block.input, block.attention_norm, pass));
  TRY(project(pass, square, parameters.query, block.attention_norm.output, block.query));
  TRY(project(pass, square, parameters.key, block.attention_norm.output, block.key));
  TRY(project(pass, square, parameters.value, block.attention_norm.output, block.value));
  context.rotary.forward(B, L, H, block.query);
  context.rotary.forward(B, L, H, block.key);
  attention_forward(attention_of(context, block), block.attention);
  std::copy_n(block.input, N * C, block.middle);
  TRY(project(pass, square, parameters.output, block.attention, block.middle, Write::accumulate));

  TRY(norm_forward(context, parameters.mlp_norm, block.middle, block.mlp_norm, pass));
  std::copy_n(block.middle, N * C, output);
  return mlp_forward(context, parameters, block, pass, output);
}

template <class T>
Result<void> block_backward(const BlockContext<T>& context, const BlockParameters& parameters,
                            const BlockActivations<T>& block, const GradientScratch<T>& d,
                            const Pass<T>& pass) {
  TRY(mlp_backward(context, parameters, block, d, pass));
  TRY(norm_backward(context, parameters.mlp_norm, block.middle, block.mlp_norm, pass, d.normed, d.residual));
  TRY(self_attention_backward(context, parameters, block, d, pass));
  return norm_backward(context, parameters.attention_norm, block.input, block.attention_norm, pass, d.normed,
                       d.residual);
}

template Result<void> block_forward<float>(const BlockContext<float>&, const BlockParameters&,
                                           const BlockActivations<float>&, const Pass<float>&, float*);
template Result<void> block_forward<double>(const BlockContext<double>&, const BlockParameters&,
                                            const BlockActivations<double>&, const Pass<double>&, double*);
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
