#include "apps/gpt/cuda/cuda_expert_layer.hpp"

#include "apps/gpt/cuda/cuda_attention.hpp"
#include "apps/gpt/cuda/cuda_projection.hpp"
#include "apps/gpt/cuda/cuda_tensor.hpp"
#include "apps/gpt/cuda/cuda_weight_work.hpp"
#include "apps/gpt/cuda/expert_desk.hpp"
#include "apps/gpt/kernels/expert_kernels.hpp"
#include "apps/gpt/kernels/kernels.hpp"
#include "apps/gpt/model/expert_exchange.hpp"
#include "apps/gpt/model/sequence_part.hpp"
#include "core/errors.hpp"
#include "gpu/kernels.hpp"

namespace troupe::apps::gpt {

using core::Result;

namespace {

/// The rows of one gated MLP, for `rows` tokens or slots.
template <class E>
struct GatedRows {
  std::size_t rows, width, feed_forward;
  E* gate;
  E* up;
  E* hidden;
};

/// One part of the rows of all experts of a layer.
template <class E>
GatedRows<E> expert_rows(const CudaContext& context, const core::ExpertRows& part, E* gate, E* up,
                         E* hidden) {
  const std::size_t F = context.config.experts.feed_forward;
  const std::size_t first = static_cast<std::size_t>(part.first) * F;
  return {static_cast<std::size_t>(part.count),
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

template <class E>
void swiglu_backward(const CudaContext& context, const GatedRows<E>& kept, const GatedRows<E>& d) {
  context.run("swiglu backward", [&](cudaStream_t stream) {
    return cuda::swiglu_backward(kept.rows * kept.feed_forward, kept.gate, kept.up, d.hidden, d.gate, d.up,
                                 stream);
  });
}

/// d_x may be d_y.
template <class E>
Result<void> gated_backward(const CudaContext& context, const ExpertWeights& weights, const E* x,
                            const GatedRows<E>& kept, const GatedRows<E>& d, const E* d_y,
                            const CudaPass<E>& pass, E* d_x, Write write) {
  const std::size_t N = kept.rows, C = kept.width, F = kept.feed_forward;
  TRY(project_backward(context, pass, {N, F, C}, weights.down, kept.hidden, d_y, d.hidden, Write::overwrite));
  swiglu_backward(context, kept, d);
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
Result<void> choose_experts(const CudaContext& context, const CudaExpertActivations<E>& layer,
                            const StepHooks& hooks) {
  ExpertDesk& desk = *context.desk;
  if (context.sequences == nullptr)
    return desk.choose(layer.layer, context.shape.rows(), layer.logits, hooks.router_factor, layer.sent,
                       context.stream);
  const auto& [sequences, length] = context.shape;
  const auto& group = *context.sequences->group;
  float* all = context.sequences->logits;
  TRY(gather_rows(context, context.config.experts.count, static_cast<const float*>(layer.logits), all));
  const SequencePart part({sequences, length * group.size()}, {group.size(), group.index()});
  const std::size_t rows = part.whole().rows();
  return desk.choose_together(layer.layer, {part.own_rows(), group.index() == 0}, rows,
                              hooks.length.value_or(rows), all, hooks.router_factor, layer.sent,
                              context.stream);
}

core::RouterShare router_share(const CudaContext& context) {
  return {context.tensor == nullptr || context.tensor->group->index() == 0,
          context.sequences == nullptr ? 1 : context.sequences->group->size()};
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
  if (!parameters.shared_gate) {
    d_output = kept_for_weights(pass, d_output, kept.rows * kept.width);
  } else {
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

/// One product for each expert and source, so that each is what the source would compute alone. x, y (R, C).
template <class E>
Result<void> experts_forward(const CudaContext& context, const ExpertLayerParameters& parameters,
                             const CudaExpertActivations<E>& layer, const E* x, E* y,
                             const CudaPass<E>& pass) {
  const auto& products = context.desk->routes(layer.layer).exchange.products;
  for (std::size_t e = 0; e < products.size(); ++e) {
    for (const core::ExpertRows& part : products[e]) {
      if (part.count == 0) continue;
      const auto kept = expert_rows(context, part, layer.gate, layer.up, layer.hidden);
      const std::size_t first = static_cast<std::size_t>(part.first) * kept.width;
      TRY(gated_forward(context, parameters.experts[e], x + first, kept, pass, y + first));
    }
  }
  return {};
}

/// As on the host: for one matrix of an expert, its gradient from each source, and once it is complete or
/// deferred, what follows. The parts stay until the microbatch is done.
template <class E, class Gradient, class Input>
Result<void> matrix_backward(const std::vector<core::ExpertRows>& parts, std::size_t weight,
                             const CudaPass<E>& pass, const Gradient& add_gradient, const Input& go_on) {
  const E* values = TRY(pass.use(weight));
  add_to_gradient(pass, weight, [=, &parts](const CudaPass<E>& at) {
    ExpertPeers* peers = at.hooks.peers;
    for (const core::ExpertRows& part : parts) {
      if (part.count == 0) continue;
      add_gradient(part, peers == nullptr ? at.gradient(weight)
                                          : static_cast<float*>(peers->gradient(weight, part.source)));
    }
  });
  for (const core::ExpertRows& part : parts) {
    if (part.count > 0) go_on(part, values);
  }
  return {};
}

/// Turns `rows` (R, C) from the gradient with respect to the experts' outputs into that with respect to their
/// inputs x. Every expert's gradient is then complete, including experts without rows, which other ranks wait
/// for.
template <class E>
Result<void> experts_backward(const CudaContext& context, const ExpertLayerParameters& parameters,
                              const CudaExpertActivations<E>& layer, const CudaExpertScratch<E>& scratch,
                              const E* x, E* rows, const CudaPass<E>& pass) {
  const std::size_t C = context.config.width, F = context.config.experts.feed_forward;
  const auto& exchange = context.desk->routes(layer.layer).exchange;
  const auto& products = exchange.products;
  const E* d_y = kept_for_weights(pass, rows, static_cast<std::size_t>(exchange.received_rows()) * C);
  const auto at = [](auto* values, const core::ExpertRows& part, std::size_t width) {
    return values + static_cast<std::size_t>(part.first) * width;
  };
  const auto count = [](const core::ExpertRows& part) { return static_cast<std::size_t>(part.count); };
  for (std::size_t e = products.size(); e-- > 0;) {
    const ExpertWeights& weights = parameters.experts[e];
    TRY(matrix_backward<E>(
        products[e], weights.down, pass,
        [=, hidden = layer.hidden](const core::ExpertRows& part, float* gradient) {
          context.blas.linear_backward_weight<E>({count(part), F, C}, at(d_y, part, C), at(hidden, part, F),
                                                 gradient);
        },
        [&](const core::ExpertRows& part, const E* values) {
          context.blas.linear_backward_input<E>({count(part), F, C}, at(rows, part, C), values,
                                                at(scratch.hidden, part, F));
          swiglu_backward(context, expert_rows(context, part, layer.gate, layer.up, layer.hidden),
                          expert_rows(context, part, scratch.gate, scratch.up, scratch.hidden));
        }));
    const auto inner = [&](std::size_t weight, E* d, Write write) {
      return matrix_backward<E>(
          products[e], weight, pass,
          [=](const core::ExpertRows& part, float* gradient) {
            context.blas.linear_backward_weight<E>({count(part), C, F}, at(d, part, F), at(x, part, C),
                                                   gradient);
          },
          [&](const core::ExpertRows& part, const E* values) {
            context.blas.linear_backward_input<E>({count(part), C, F}, at(d, part, F), values,
                                                  at(rows, part, C), write);
          });
    };
    TRY(inner(weights.up, scratch.up, Write::overwrite));
    TRY(inner(weights.gate, scratch.gate, Write::accumulate));
  }
  return {};
}

/// With the layer's own memory for what the weights' half of its backward reads.
template <class E>
CudaExpertScratch<E> scratch_for_weights(const CudaContext& context, const ExpertLayerParameters& parameters,
                                         CudaExpertScratch<E> scratch, const CudaPass<E>& pass) {
  const ExpertConfig& config = context.config.experts;
  const std::size_t N = context.shape.rows(), C = context.config.width, R = config.most_rows(N);
  const std::size_t F = config.feed_forward, G = config.shared_feed_forward;
  if (config.ranks == 1) scratch.gathered = place_for_weights(pass, scratch.gathered, N * config.choices * C);
  scratch.gate = place_for_weights(pass, scratch.gate, R * F);
  scratch.up = place_for_weights(pass, scratch.up, R * F);
  scratch.logits = place_for_weights(pass, scratch.logits, N * config.count);
  if (!parameters.shared) return scratch;
  scratch.shared_gate = place_for_weights(pass, scratch.shared_gate, N * G);
  scratch.shared_up = place_for_weights(pass, scratch.shared_up, N * G);
  if (!parameters.shared_gate) return scratch;
  scratch.shared_output = place_for_weights(pass, scratch.shared_output, N * C);
  scratch.shared_share = place_for_weights(pass, scratch.shared_share, N);
  return scratch;
}

/// Converts between the order in which ranks exchange rows and that of grouped products: to[i] =
/// from[list[i]].
template <class E>
void order_rows(const CudaContext& context, std::size_t rows, const std::int32_t* list, const E* from,
                E* to) {
  const cuda::ExpertPlaces places{rows, 1, rows, context.config.width, list, nullptr};
  context.run("order rows",
              [&](cudaStream_t stream) { return cuda::gather_tokens(places, from, to, stream); });
}

/// The rows that this rank's products read, from all ranks' slots (S, C), which are ordered by expert and
/// therefore by rank; `moved` is for grouped products.
template <class E, class Work>
Result<void> slots_to_products(const CudaContext& context, const CudaExpertActivations<E>& layer,
                               ExpertPeers& peers, const E* slots, E* moved, E* rows, const Work& meanwhile) {
  const ExpertRoutes& routes = context.desk->routes(layer.layer);
  const auto& exchange = routes.exchange;
  const std::size_t C = context.config.width, R = static_cast<std::size_t>(exchange.received_rows());
  const std::span<const E> from(slots, static_cast<std::size_t>(routes.dispatch.slots()) * C);
  const std::span<E> to(exchange.grouped ? moved : rows, R * C);
  TRY(exchange_rows<E>({layer.layer, routes.number, true}, {exchange.sent, exchange.received, {}, {}}, C,
                       peers, from, to, meanwhile));
  if (exchange.grouped) order_rows(context, R, layer.sent.row_of_product, to.data(), rows);
  return {};
}

/// The reverse.
template <class E>
Result<void> products_to_slots(const CudaContext& context, const CudaExpertActivations<E>& layer,
                               ExpertPeers& peers, const E* rows, E* moved, E* slots) {
  const ExpertRoutes& routes = context.desk->routes(layer.layer);
  const auto& exchange = routes.exchange;
  const std::size_t C = context.config.width, R = static_cast<std::size_t>(exchange.received_rows());
  if (exchange.grouped) order_rows(context, R, layer.sent.product_of_row, rows, moved);
  const std::span<const E> from(exchange.grouped ? moved : rows, R * C);
  const std::span<E> to(slots, static_cast<std::size_t>(routes.dispatch.slots()) * C);
  return exchange_rows<E>({layer.layer, routes.number, false}, {exchange.received, exchange.sent, {}, {}}, C,
                          peers, from, to, nothing);
}

}  // namespace

template <class E>
Result<void> expert_layer_forward(const CudaContext& context, const ExpertLayerParameters& parameters,
                                  const CudaExpertActivations<E>& layer, const E* x, const CudaPass<E>& pass,
                                  E* output) {
  const std::size_t N = context.shape.rows(), C = context.config.width;
  context.blas.linear_forward_wide({N, C, context.config.experts.count}, x, TRY(pass.use(parameters.router)),
                                   layer.logits);
  TRY(choose_experts(context, layer, pass.hooks));
  ExpertRoutes& routes = context.desk->routes(layer.layer);
  ExpertPeers* peers = pass.hooks.peers;
  TRY(plan_rows(context.config.experts, layer.layer, peers, routes));
  const auto places = places_of(context, layer);
  const auto shared = [&] { return shared_forward(context, parameters, layer, x, pass); };
  context.run("gather tokens",
              [&](cudaStream_t stream) { return cuda::gather_tokens(places, x, layer.gathered, stream); });
  if (peers == nullptr) {
    TRY(experts_forward<E>(context, parameters, layer, layer.gathered, layer.output, pass));
    TRY(shared());
  } else {
    if (context.config.experts.grouped) {
      core::group_rows(routes.exchange);
      context.desk->send_groups(layer.layer, layer.sent, context.stream);
    }
    TRY(slots_to_products<E>(context, layer, *peers, layer.gathered, layer.moved, layer.received, shared));
    TRY(experts_forward<E>(context, parameters, layer, layer.received, layer.returned, pass));
    TRY(products_to_slots<E>(context, layer, *peers, layer.returned, layer.moved, layer.output));
  }
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
                                   const CudaExpertActivations<E>& layer,
                                   const CudaExpertScratch<E>& of_all_layers, const E* x, const E* d_output,
                                   const CudaPass<E>& pass, E* d_x) {
  const std::size_t N = context.shape.rows(), C = context.config.width;
  const auto scratch = scratch_for_weights(context, parameters, of_all_layers, pass);
  const auto places = places_of(context, layer);
  gpu::zero({reinterpret_cast<std::byte*>(d_x), N * C * sizeof(E)}, context.stream);
  context.run("combine backward", [&](cudaStream_t stream) {
    return cuda::combine_backward<E>(places, layer.sent.weights, layer.output,
                                     {d_output, scratch.slots, scratch.weights}, stream);
  });
  const auto shared = [&] {
    return shared_backward(context, parameters, layer, scratch, x, d_output, pass, d_x);
  };
  if (ExpertPeers* peers = pass.hooks.peers; peers != nullptr) {
    TRY(pass.use(parameters.router));  // of this layer's unit, in which its exchanges are declared
    TRY(slots_to_products<E>(context, layer, *peers, scratch.slots, scratch.moved, scratch.rows, shared));
    TRY(experts_backward<E>(context, parameters, layer, scratch, layer.received, scratch.rows, pass));
    TRY(products_to_slots<E>(context, layer, *peers, scratch.rows, scratch.moved, scratch.slots));
  } else {
    TRY(shared());
    context.run("gather tokens", [&](cudaStream_t stream) {
      return cuda::gather_tokens(places, x, scratch.gathered, stream);
    });
    TRY(experts_backward<E>(context, parameters, layer, scratch, scratch.gathered, scratch.slots, pass));
  }
  context.run("gather backward", [&](cudaStream_t stream) {
    return cuda::combine<E>(places, nullptr, scratch.slots, d_x, stream);
  });
  TRY(context.desk->logit_gradients(layer.layer, scratch.weights, router_share(context), pass.hooks,
                                    scratch.logits, context.stream));
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
