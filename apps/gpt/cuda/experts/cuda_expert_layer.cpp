#include "apps/gpt/cuda/experts/cuda_expert_layer.hpp"

#include "apps/gpt/cuda/cuda_projection.hpp"
#include "apps/gpt/cuda/experts/expert_desk.hpp"
#include "apps/gpt/cuda/experts/expert_kernels.hpp"
#include "apps/gpt/cuda/kernels.hpp"
#include "core/errors.hpp"
#include "gpu/kernels.hpp"

namespace troupe::apps::gpt {

using core::Result;

namespace {

/// One gated MLP's rows, of `rows` tokens or slots.
template <class E>
struct GatedRows {
  std::size_t rows, width, feed_forward;
  E* gate;
  E* up;
  E* hidden;
};

template <class E>
GatedRows<E> expert_rows(const CudaContext& context, const core::Dispatch& dispatch, std::size_t expert,
                         E* gate, E* up, E* hidden) {
  const std::size_t F = context.config.experts.feed_forward;
  const std::size_t first = static_cast<std::size_t>(dispatch.first_slot[expert]) * F;
  return {static_cast<std::size_t>(dispatch.count(expert)),
          context.config.width,
          F,
          gate + first,
          up + first,
          hidden + first};
}

template <class E>
Result<void> gated_forward(const CudaContext& context, const ExpertWeights& weights, const E* x,
                           const GatedRows<E>& kept, const CudaPass<E>& pass, E* y) {
  const std::size_t N = kept.rows, C = kept.width, F = kept.feed_forward;
  TRY(project(context, pass, {N, C, F}, weights.gate, x, kept.gate));
  TRY(project(context, pass, {N, C, F}, weights.up, x, kept.up));
  context.run("swiglu", [&](cudaStream_t stream) {
    return cuda::swiglu_forward(N * F, kept.gate, kept.up, kept.hidden, stream);
  });
  return project(context, pass, {N, F, C}, weights.down, kept.hidden, y);
}

/// d_x may be d_y. Of an expert without rows the gradients are complete all the same.
template <class E>
Result<void> gated_backward(const CudaContext& context, const ExpertWeights& weights, const E* x,
                            const GatedRows<E>& kept, const GatedRows<E>& d, const E* d_y,
                            const CudaPass<E>& pass, E* d_x, Write write) {
  const std::size_t N = kept.rows, C = kept.width, F = kept.feed_forward;
  if (N == 0) {
    for (const std::size_t weight : {weights.down, weights.up, weights.gate}) {
      TRY(pass.use(weight));
      pass.ready(weight);
    }
    return {};
  }
  TRY(project_backward(context, pass, {N, F, C}, weights.down, kept.hidden, d_y, d.hidden, Write::overwrite));
  context.run("swiglu backward", [&](cudaStream_t stream) {
    return cuda::swiglu_backward(N * F, kept.gate, kept.up, d.hidden, d.gate, d.up, stream);
  });
  TRY(project_backward(context, pass, {N, C, F}, weights.up, x, d.up, d_x, write));
  return project_backward(context, pass, {N, C, F}, weights.gate, x, d.gate, d_x, Write::accumulate);
}

template <class E>
cuda::ExpertPlaces places_of(const CudaContext& context, const CudaExpertActivations<E>& layer) {
  return {context.shape.rows(),
          context.config.experts.choices,
          static_cast<std::size_t>(context.desk->routes(layer.layer).dispatch.slots()),
          context.config.width,
          layer.sent.choice_of_slot,
          layer.sent.slot_of_choice};
}

template <class E>
GatedRows<E> shared_rows(const CudaContext& context, E* gate, E* up, E* hidden) {
  return {context.shape.rows(),
          context.config.width,
          context.config.experts.shared_feed_forward,
          gate,
          up,
          hidden};
}

template <class E>
Result<void> shared_forward(const CudaContext& context, const ExpertLayerParameters& parameters,
                            const CudaExpertActivations<E>& layer, const E* x, const CudaPass<E>& pass) {
  if (!parameters.shared) return {};
  const auto kept = shared_rows(context, layer.shared_gate, layer.shared_up, layer.shared_hidden);
  TRY(gated_forward(context, *parameters.shared, x, kept, pass, layer.shared_output));
  if (!parameters.shared_gate) return {};
  return project(context, pass, {kept.rows, kept.width, 1}, *parameters.shared_gate, x, layer.shared_share);
}

/// Adds to d_x.
template <class E>
Result<void> shared_backward(const CudaContext& context, const ExpertLayerParameters& parameters,
                             const CudaExpertActivations<E>& layer, const CudaExpertScratch<E>& scratch,
                             const E* x, const E* d_output, const CudaPass<E>& pass, E* d_x) {
  if (!parameters.shared) return {};
  const auto kept = shared_rows(context, layer.shared_gate, layer.shared_up, layer.shared_hidden);
  if (parameters.shared_gate) {
    context.run("shared expert backward", [&](cudaStream_t stream) {
      return cuda::shared_backward(kept.rows, kept.width, layer.shared_share, layer.shared_output, d_output,
                                   scratch.shared_output, scratch.shared_share, stream);
    });
    d_output = scratch.shared_output;
    TRY(project_backward(context, pass, {kept.rows, kept.width, 1}, *parameters.shared_gate, x,
                         scratch.shared_share, d_x, Write::accumulate));
  }
  const auto d = shared_rows(context, scratch.shared_gate, scratch.shared_up, scratch.shared_hidden);
  return gated_backward(context, *parameters.shared, x, kept, d, d_output, pass, d_x, Write::accumulate);
}

}  // namespace

template <class E>
Result<void> expert_layer_forward(const CudaContext& context, const ExpertLayerParameters& parameters,
                                  const CudaExpertActivations<E>& layer, const E* x, const CudaPass<E>& pass,
                                  E* output) {
  const std::size_t N = context.shape.rows(), C = context.config.width;
  context.blas.linear_forward_wide({N, C, context.config.experts.count}, x, TRY(pass.use(parameters.router)),
                                   layer.logits);
  TRY(context.desk->choose(layer.layer, N, layer.logits, layer.sent, context.stream));
  const auto& dispatch = context.desk->routes(layer.layer).dispatch;
  const auto places = places_of(context, layer);
  context.run("gather tokens",
              [&](cudaStream_t stream) { return cuda::gather_tokens(places, x, layer.gathered, stream); });
  for (std::size_t e = 0; e < parameters.experts.size(); ++e) {
    const auto kept = expert_rows(context, dispatch, e, layer.gate, layer.up, layer.hidden);
    const std::size_t first = static_cast<std::size_t>(dispatch.first_slot[e]) * C;
    if (kept.rows > 0)
      TRY(gated_forward(context, parameters.experts[e], static_cast<const E*>(layer.gathered) + first, kept,
                        pass, layer.output + first));
  }
  TRY(shared_forward(context, parameters, layer, x, pass));
  context.run("combine", [&](cudaStream_t stream) {
    return cuda::combine<E>(places, layer.sent.weights, layer.output, output, stream);
  });
  if (!parameters.shared) return {};
  context.run("shared expert", [&](cudaStream_t stream) {
    return cuda::add_shared<E>(N, C, parameters.shared_gate ? layer.shared_share : nullptr,
                               layer.shared_output, output, stream);
  });
  return {};
}

template <class E>
Result<void> expert_layer_backward(const CudaContext& context, const ExpertLayerParameters& parameters,
                                   const CudaExpertActivations<E>& layer, const CudaExpertScratch<E>& scratch,
                                   const E* x, const E* d_output, const CudaPass<E>& pass, E* d_x) {
  const std::size_t N = context.shape.rows(), C = context.config.width;
  const auto& dispatch = context.desk->routes(layer.layer).dispatch;
  const auto places = places_of(context, layer);
  gpu::zero({reinterpret_cast<std::byte*>(d_x), N * C * sizeof(E)}, context.stream);
  context.run("combine backward", [&](cudaStream_t stream) {
    return cuda::combine_backward<E>(places, layer.sent.weights, layer.output,
                                     {d_output, scratch.slots, scratch.weights}, stream);
  });
  TRY(shared_backward(context, parameters, layer, scratch, x, d_output, pass, d_x));
  context.run("gather tokens",
              [&](cudaStream_t stream) { return cuda::gather_tokens(places, x, scratch.gathered, stream); });
  for (std::size_t e = parameters.experts.size(); e-- > 0;) {
    const std::size_t first = static_cast<std::size_t>(dispatch.first_slot[e]) * C;
    const auto kept = expert_rows(context, dispatch, e, layer.gate, layer.up, layer.hidden);
    const auto d = expert_rows(context, dispatch, e, scratch.gate, scratch.up, scratch.hidden);
    TRY(gated_backward<E>(context, parameters.experts[e], scratch.gathered + first, kept, d,
                          scratch.slots + first, pass, scratch.slots + first, Write::overwrite));
  }
  context.run("gather backward", [&](cudaStream_t stream) {
    return cuda::combine<E>(places, nullptr, scratch.slots, d_x, stream);
  });
  TRY(context.desk->logit_gradients(layer.layer, scratch.weights, pass.hooks.loss_scale, scratch.logits,
                                    context.stream));
  return project_backward(context, pass, {N, C, context.config.experts.count}, parameters.router, x,
                          static_cast<const E*>(scratch.logits), d_x, Write::accumulate);
}

template Result<void> expert_layer_forward<float>(const CudaContext&, const ExpertLayerParameters&,
                                                  const CudaExpertActivations<float>&, const float*,
                                                  const CudaPass<float>&, float*);
template Result<void> expert_layer_forward<Bf16>(const CudaContext&, const ExpertLayerParameters&,
                                                 const CudaExpertActivations<Bf16>&, const Bf16*,
                                                 const CudaPass<Bf16>&, Bf16*);
template Result<void> expert_layer_backward<float>(const CudaContext&, const ExpertLayerParameters&,
                                                   const CudaExpertActivations<float>&,
                                                   const CudaExpertScratch<float>&, const float*,
                                                   const float*, const CudaPass<float>&, float*);
template Result<void> expert_layer_backward<Bf16>(const CudaContext&, const ExpertLayerParameters&,
                                                  const CudaExpertActivations<Bf16>&,
                                                  const CudaExpertScratch<Bf16>&, const Bf16*, const Bf16*,
                                                  const CudaPass<Bf16>&, Bf16*);

}  // namespace troupe::apps::gpt
