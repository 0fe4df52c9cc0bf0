#include "apps/gpt/cuda/cuda_block.hpp"

#include <optional>

#include "apps/gpt/cuda/cuda_attention.hpp"
#include "apps/gpt/cuda/cuda_expert_layer.hpp"
#include "apps/gpt/cuda/cuda_projection.hpp"
#include "apps/gpt/cuda/cuda_tensor.hpp"
#include "apps/gpt/cuda/cuda_weight_work.hpp"
#include "apps/gpt/kernels/kernels.hpp"
#include "core/errors.hpp"
#include "gpu/kernels.hpp"

namespace troupe::apps::gpt {

// N rows of this pass, C width, F feed_forward, H heads, K heads with keys of their own, D head size.

using core::Result;

namespace {

template <class E>
void copy_rows(const CudaContext& context, const E* from, E* to) {
  const std::size_t bytes = own_rows(context) * context.config.width * sizeof(E);
  if (bytes == 0) return;
  context.run("residual", [=](cudaStream_t stream) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
  });
}

// The norm's output for all rows, where the weights' half of backward will find it too.
template <class E>
Result<const E*> normed_rows_again(const CudaContext& context, const CudaNormActivations<E>& norm,
                                   const CudaPass<E>& pass) {
  const E* rows = TRY(all_rows<E>(context, norm.output));
  return kept_for_weights(pass, rows, context.shape.rows() * context.config.width, norm.output);
}

// A gradient of rows that a block adds to the residual stream: for all rows, as above.
template <class E>
Result<const E*> residual_gradient(const CudaContext& context, const CudaGradientScratch<E>& d,
                                   const CudaPass<E>& pass) {
  const E* rows = TRY(all_rows<E>(context, d.residual));
  return kept_for_weights(pass, rows, context.shape.rows() * context.config.width);
}

// The rows that a bias is added to, if there is one.
struct LinearBias {
  std::size_t rows, width;
  std::optional<std::size_t> parameter;
};

template <class E>
Result<void> add_bias(const CudaContext& context, const CudaPass<E>& pass, LinearBias bias, E* y) {
  if (!bias.parameter) return {};
  const E* values = TRY(pass.use(*bias.parameter));
  if (bias.rows == 0) return {};
  context.run("bias", [&](cudaStream_t stream) {
    return cuda::bias_forward(bias.rows, bias.width, values, y, stream);
  });
  return {};
}

template <class E>
Result<void> add_bias_gradient(const CudaContext& context, const CudaPass<E>& pass, LinearBias bias,
                               const E* d_y, float* partials) {
  if (!bias.parameter) return {};
  return use_and_add_to_gradient(pass, *bias.parameter, [=](const CudaPass<E>& at) {
    if (bias.rows == 0) return;
    context.run("bias backward", [&](cudaStream_t stream) {
      return cuda::bias_backward(bias.rows, bias.width, d_y, partials, at.gradient(*bias.parameter), stream);
    });
  });
}

template <class E>
void turn(const CudaContext& context, float direction, E* query, E* key) {
  const cuda::Turn<E> turn{context.shape.rows(),
                           context.shape.length,
                           context.config.heads,
                           context.config.key_heads(),
                           context.config.head_size() / 2,
                           context.cosine,
                           context.sine,
                           direction,
                           query,
                           key};
  context.run("rotary", [&](cudaStream_t stream) { return cuda::rotary(turn, stream); });
}

// Up to block.hidden.
template <class E>
Result<void> mlp_activations(const CudaContext& context, const BlockParameters& parameters,
                             const CudaBlockActivations<E>& block, const CudaPass<E>& pass) {
  const std::size_t N = context.shape.rows(), C = context.config.width, F = context.config.feed_forward;
  if (parameters.experts) return {};  // they are computed together with the experts' output
  const E* x = TRY(all_rows<E>(context, block.mlp_norm.output));
  if (parameters.gate) {
    TRY(project(context, pass, {N, C, F}, *parameters.gate, x, block.gate));
    TRY(project(context, pass, {N, C, F}, parameters.up, x, block.up));
    context.run("swiglu", [&](cudaStream_t stream) {
      return cuda::swiglu_forward(N * F, block.gate, block.up, block.hidden, stream);
    });
  } else {
    TRY(project(context, pass, {N, C, F}, parameters.up, x, block.up));
    context.run("gelu", [&](cudaStream_t stream) {
      return cuda::gelu_forward(N * F, block.up, block.hidden, stream);
    });
  }
  return {};
}

template <class E>
Result<void> experts_into_residual(const CudaContext& context, const BlockParameters& parameters,
                                   const CudaBlockActivations<E>& block, const CudaPass<E>& pass,
                                   E* residual) {
  const E* x = TRY(all_rows<E>(context, block.mlp_norm.output));
  if (context.tensor == nullptr)
    return expert_layer_forward<E>(context, *parameters.experts, block.experts, x, pass, residual);
  const std::size_t bytes = context.shape.rows() * context.config.width * sizeof(E);
  gpu::zero({context.tensor->partial, bytes}, context.stream);
  E* partial = reinterpret_cast<E*>(context.tensor->partial);
  TRY(expert_layer_forward<E>(context, *parameters.experts, block.experts, x, pass, partial));
  return add_summed_rows(context, partial, residual);
}

template <class E>
Result<void> experts_backward(const CudaContext& context, const BlockParameters& parameters,
                              const CudaBlockActivations<E>& block, const CudaGradientScratch<E>& d,
                              const CudaPass<E>& pass) {
  const E* d_output = TRY(all_rows<E>(context, d.residual));
  if (d_output != d.residual) {
    const std::size_t bytes = context.shape.rows() * context.config.width * sizeof(E);
    gpu::copy({reinterpret_cast<const std::byte*>(d_output), bytes}, {context.tensor->again, bytes},
              context.stream);
    d_output = reinterpret_cast<const E*>(context.tensor->again);
  }
  const E* x = TRY(normed_rows_again(context, block.mlp_norm, pass));
  return expert_layer_backward<E>(context, *parameters.experts, block.experts, d.experts, x, d_output, pass,
                                  d.normed);
}

template <class E>
Result<void> mlp_backward(const CudaContext& context, const BlockParameters& parameters,
                          const CudaBlockActivations<E>& block, const CudaGradientScratch<E>& d,
                          const CudaPass<E>& pass) {
  const std::size_t N = context.shape.rows(), C = context.config.width, F = context.config.feed_forward;
  if (parameters.experts) return experts_backward(context, parameters, block, d, pass);
  const E* d_output = TRY(residual_gradient(context, d, pass));
  TRY(project_backward(context, pass, {N, F, C}, parameters.down, block.hidden, d_output, d.hidden,
                       Write::overwrite));
  const E* x = TRY(normed_rows_again(context, block.mlp_norm, pass));
  if (parameters.gate) {
    context.run("swiglu backward", [&](cudaStream_t stream) {
      return cuda::swiglu_backward(N * F, block.gate, block.up, d.hidden, d.gate, d.up, stream);
    });
    TRY(project_backward(context, pass, {N, C, F}, parameters.up, x, d.up, d.normed, Write::overwrite));
    return project_backward(context, pass, {N, C, F}, *parameters.gate, x, d.gate, d.normed,
                            Write::accumulate);
  }
  context.run("gelu backward", [&](cudaStream_t stream) {
    return cuda::gelu_backward(N * F, block.up, d.hidden, d.up, stream);
  });
  return project_backward(context, pass, {N, C, F}, parameters.up, x, d.up, d.normed, Write::overwrite);
}

// Queries or keys of `heads` heads: their place in the block, and the parameters that produce them.
template <class E>
struct HeadSide {
  std::size_t heads;
  std::size_t weight;
  std::optional<std::size_t> bias, norm;
  CudaHeadNormActivations<E> before;
  E* output;
};

template <class E>
HeadSide<E> query_side(const CudaContext& context, const BlockParameters& parameters,
                       const CudaBlockActivations<E>& block) {
  return {context.config.heads,  parameters.query, parameters.query_bias,
          parameters.query_norm, block.query_norm, block.query};
}

template <class E>
HeadSide<E> key_side(const CudaContext& context, const BlockParameters& parameters,
                     const CudaBlockActivations<E>& block) {
  return {context.config.key_heads(), parameters.key, parameters.key_bias,
          parameters.key_norm,        block.key_norm, block.key};
}

template <class E>
cuda::Norm<E> head_norm_of(const CudaContext& context, const HeadSide<E>& side, const E* weight) {
  return {.rows = context.shape.rows() * side.heads,
          .width = context.config.head_size(),
          .epsilon = static_cast<float>(context.config.norm_epsilon),
          .x = side.before.input,
          .weight = weight,
          .bias = nullptr,
          .mean = nullptr,
          .scale = side.before.scale};
}

template <class E>
Result<void> head_projection(const CudaContext& context, const HeadSide<E>& side, const E* x,
                             const CudaPass<E>& pass) {
  const std::size_t width = side.heads * context.config.head_size();
  E* y = side.norm ? side.before.input : side.output;
  TRY(project(context, pass, {context.shape.rows(), context.config.width, width}, side.weight, x, y));
  return add_bias(context, pass, {context.shape.rows(), width, side.bias}, y);
}

template <class E>
Result<void> head_norm_forward(const CudaContext& context, const HeadSide<E>& side, const CudaPass<E>& pass) {
  if (!side.norm) return {};
  const auto norm = head_norm_of(context, side, TRY(pass.use(*side.norm)));
  context.run("head norm",
              [&](cudaStream_t stream) { return cuda::norm_forward(norm, side.output, stream); });
  return {};
}

// From the gradient with respect to the heads before their rotation to those of the parameters, and to
// d.normed.
template <class E>
Result<void> head_backward(const CudaContext& context, const HeadSide<E>& side, const E* x,
                           const CudaGradientScratch<E>& d, E* d_heads, const CudaPass<E>& pass) {
  const std::size_t width = side.heads * context.config.head_size();
  if (side.norm) {
    const auto norm = head_norm_of(context, side, TRY(pass.use(*side.norm)));
    const E* d_normed = kept_for_weights(pass, d_heads, context.shape.rows() * width);
    TRY(use_and_add_to_gradient(  // used again, as on the host
        pass, *side.norm, [=, weight = *side.norm, partials = d.partials](const CudaPass<E>& at) {
          context.run("head norm backward", [&](cudaStream_t stream) {
            return cuda::norm_backward_weight<E>(norm, {d_normed, at.gradient(weight), nullptr, partials},
                                                 stream);
          });
        }));
    context.run("head norm backward", [&](cudaStream_t stream) {
      return cuda::norm_backward_input<E>(norm, d_heads, d_heads, Write::overwrite, stream);
    });
  }
  TRY(add_bias_gradient(context, pass, {context.shape.rows(), width, side.bias}, d_heads, d.partials));
  return project_backward(context, pass, {context.shape.rows(), context.config.width, width}, side.weight, x,
                          d_heads, d.normed, Write::accumulate);
}

template <class E>
Result<void> self_attention_forward(const CudaContext& context, const BlockParameters& parameters,
                                    const CudaBlockActivations<E>& block, const CudaPass<E>& pass) {
  const std::size_t N = context.shape.rows(), C = context.config.width;
  const std::size_t Q = context.config.query_width(), K = context.config.key_width();
  const auto query = query_side(context, parameters, block), key = key_side(context, parameters, block);
  const E* x = TRY(all_rows<E>(context, block.attention_norm.output));
  TRY(head_projection(context, query, x, pass));
  TRY(head_projection(context, key, x, pass));
  TRY(project(context, pass, {N, C, K}, parameters.value, x, block.value));
  TRY(add_bias(context, pass, {N, K, parameters.value_bias}, block.value));
  TRY(head_norm_forward(context, query, pass));
  TRY(head_norm_forward(context, key, pass));
  turn(context, 1, block.query, block.key);
  TRY(attention_forward(context, block));
  copy_rows(context, block.input, block.middle);
  TRY(project_into_residual<E>(context, pass, Q, parameters.output, block.attention, block.middle));
  return add_bias(context, pass, {own_rows(context), C, parameters.output_bias}, block.middle);
}

template <class E>
Result<void> self_attention_backward(const CudaContext& context, const BlockParameters& parameters,
                                     const CudaBlockActivations<E>& block, const CudaGradientScratch<E>& d,
                                     const CudaPass<E>& pass) {
  const std::size_t N = context.shape.rows(), C = context.config.width;
  const std::size_t Q = context.config.query_width(), K = context.config.key_width();
  if (parameters.output_bias) {
    const E* d_own = kept_for_weights(pass, d.residual, own_rows(context) * C);
    TRY(add_bias_gradient(context, pass, {own_rows(context), C, parameters.output_bias}, d_own, d.partials));
  }
  const E* d_output = TRY(residual_gradient(context, d, pass));
  TRY(project_backward(context, pass, {N, Q, C}, parameters.output, block.attention, d_output, d.attention,
                       Write::overwrite));
  TRY(attention_backward(context, block, d));
  turn(context, -1, d.query, d.key);
  TRY(add_bias_gradient(context, pass, {N, K, parameters.value_bias}, d.value, d.partials));
  const E* x = TRY(normed_rows_again(context, block.attention_norm, pass));
  TRY(project_backward(context, pass, {N, C, K}, parameters.value, x, d.value, d.normed, Write::overwrite));
  TRY(head_backward(context, key_side(context, parameters, block), x, d, d.key, pass));
  return head_backward(context, query_side(context, parameters, block), x, d, d.query, pass);
}

// With the block's own memory for what the weights' half of its backward reads.
template <class E>
CudaGradientScratch<E> scratch_for_weights(const CudaContext& context, const BlockParameters& parameters,
                                           CudaGradientScratch<E> d, const CudaPass<E>& pass) {
  const std::size_t N = context.shape.rows(), F = context.config.feed_forward;
  d.query = place_for_weights(pass, d.query, N * context.config.query_width());
  d.key = place_for_weights(pass, d.key, N * context.config.key_width());
  d.value = place_for_weights(pass, d.value, N * context.config.key_width());
  if (parameters.gate) d.gate = place_for_weights(pass, d.gate, N * F);
  if (!parameters.experts) d.up = place_for_weights(pass, d.up, N * F);
  return d;
}

template <class E>
cuda::Norm<E> norm_of(const CudaContext& context, const E* x, const E* weight, const E* bias,
                      const CudaNormActivations<E>& norm) {
  return {own_rows(context),
          context.config.width,
          static_cast<float>(context.config.norm_epsilon),
          x,
          weight,
          bias,
          norm.mean,
          norm.scale};
}

}  // namespace

template <class E>
Result<void> norm_forward(const CudaContext& context, const NormParameters& parameters, const E* x,
                          const CudaNormActivations<E>& norm, const CudaPass<E>& pass) {
  const E* weight = TRY(pass.use(parameters.weight));
  const E* bias = nullptr;
  if (parameters.bias) bias = TRY(pass.use(*parameters.bias));
  if (own_rows(context) == 0) return {};
  context.run("norm", [&](cudaStream_t stream) {
    return cuda::norm_forward(norm_of(context, x, weight, bias, norm), norm.output, stream);
  });
  return {};
}

template <class E>
Result<void> norm_backward(const CudaContext& context, const NormParameters& parameters, const E* x,
                           const CudaNormActivations<E>& norm, const E* d_y, const CudaGradientScratch<E>& d,
                           const CudaPass<E>& pass) {
  const auto rows = norm_of<E>(context, x, TRY(pass.use(parameters.weight)), nullptr, norm);
  const E* kept = kept_for_weights(pass, d_y, rows.rows * rows.width);
  add_to_gradient(pass, parameters.weight, [=, partials = d.partials](const CudaPass<E>& at) {
    if (rows.rows > 0) {
      float* d_bias = parameters.bias ? at.gradient(*parameters.bias) : nullptr;
      context.run("norm backward", [&](cudaStream_t stream) {
        return cuda::norm_backward_weight<E>(rows, {kept, at.gradient(parameters.weight), d_bias, partials},
                                             stream);
      });
    }
    if (parameters.bias) at.ready(*parameters.bias);
  });
  if (rows.rows > 0) {
    context.run("norm backward", [&](cudaStream_t stream) {
      return cuda::norm_backward_input<E>(rows, d_y, d.residual, Write::accumulate, stream);
    });
  }
  return {};
}

template <class E>
Result<void> block_activations(const CudaContext& context, const BlockParameters& parameters,
                               const CudaBlockActivations<E>& block, const CudaPass<E>& pass) {
  TRY(norm_forward(context, parameters.attention_norm, block.input, block.attention_norm, pass));
  TRY(self_attention_forward(context, parameters, block, pass));
  TRY(norm_forward(context, parameters.mlp_norm, block.middle, block.mlp_norm, pass));
  return mlp_activations(context, parameters, block, pass);
}

template <class E>
Result<void> block_forward(const CudaContext& context, const BlockParameters& parameters,
                           const CudaBlockActivations<E>& block, const CudaPass<E>& pass, E* output) {
  TRY(block_activations(context, parameters, block, pass));
  copy_rows(context, block.middle, output);
  if (parameters.experts) return experts_into_residual(context, parameters, block, pass, output);
  return project_into_residual<E>(context, pass, context.config.feed_forward, parameters.down, block.hidden,
                                  output);
}

template <class E>
Result<void> block_backward(const CudaContext& context, const BlockParameters& parameters,
                            const CudaBlockActivations<E>& block, const CudaGradientScratch<E>& scratch,
                            const CudaPass<E>& pass) {
  const auto d = scratch_for_weights(context, parameters, scratch, pass);
  TRY(mlp_backward(context, parameters, block, d, pass));
  const E* d_normed = TRY(summed_rows(context, d.normed));
  TRY(norm_backward<E>(context, parameters.mlp_norm, block.middle, block.mlp_norm, d_normed, d, pass));
  TRY(self_attention_backward(context, parameters, block, d, pass));
  d_normed = TRY(summed_rows(context, d.normed));
  return norm_backward<E>(context, parameters.attention_norm, block.input, block.attention_norm, d_normed, d,
                          pass);
}

template Result<void> block_forward<float>(const CudaContext&, const BlockParameters&,
                                           const CudaBlockActivations<float>&, const CudaPass<float>&,
                                           float*);
template Result<void> block_forward<Bf16>(const CudaContext&, const BlockParameters&,
                                          const CudaBlockActivations<Bf16>&, const CudaPass<Bf16>&, Bf16*);
template Result<void> block_activations<float>(const CudaContext&, const BlockParameters&,
                                               const CudaBlockActivations<float>&, const CudaPass<float>&);
template Result<void> block_activations<Bf16>(const CudaContext&, const BlockParameters&,
                                              const CudaBlockActivations<Bf16>&, const CudaPass<Bf16>&);
template Result<void> block_backward<float>(const CudaContext&, const BlockParameters&,
                                            const CudaBlockActivations<float>&,
                                            const CudaGradientScratch<float>&, const CudaPass<float>&);
template Result<void> block_backward<Bf16>(const CudaContext&, const BlockParameters&,
                                           const CudaBlockActivations<Bf16>&,
                                           const CudaGradientScratch<Bf16>&, const CudaPass<Bf16>&);
template Result<void> norm_forward<float>(const CudaContext&, const NormParameters&, const float*,
                                          const CudaNormActivations<float>&, const CudaPass<float>&);
template Result<void> norm_forward<Bf16>(const CudaContext&, const NormParameters&, const Bf16*,
                                         const CudaNormActivations<Bf16>&, const CudaPass<Bf16>&);
template Result<void> norm_backward<float>(const CudaContext&, const NormParameters&, const float*,
                                           const CudaNormActivations<float>&, const float*,
                                           const CudaGradientScratch<float>&, const CudaPass<float>&);
template Result<void> norm_backward<Bf16>(const CudaContext&, const NormParameters&, const Bf16*,
                                          const CudaNormActivations<Bf16>&, const Bf16*,
                                          const CudaGradientScratch<Bf16>&, const CudaPass<Bf16>&);

}  // namespace troupe::apps::gpt
