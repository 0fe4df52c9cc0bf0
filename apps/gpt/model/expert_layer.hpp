#pragma once

#include <cstddef>
#include <vector>

#include "apps/gpt/model/block_context.hpp"
#include "apps/gpt/model/expert_choice.hpp"
#include "apps/gpt/model/expert_exchange.hpp"
#include "apps/gpt/model/expert_parameters.hpp"
#include "apps/gpt/model/projection.hpp"
#include "apps/gpt/model/rows.hpp"
#include "apps/gpt/model/sequences.hpp"
#include "core/errors.hpp"
#include "core/experts/row_move.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

// N rows, C width, F feed_forward of an expert, G of the shared one, S slots, R rows that this rank's experts
// compute with. X is the engine that computes, E its elements.

/// A layer with experts and the rows of a pass, as engines take them.
template <class E>
struct ExpertTokens {
  const ExpertActivations<E>& layer;
  std::size_t rows, choices, width;
  std::size_t slices = 1;  ///< whose terms are the experts' results, (S, slices, C)

  std::size_t slots() const { return static_cast<std::size_t>(layer.routes->dispatch.slots()); }
  std::size_t received() const { return static_cast<std::size_t>(layer.routes->exchange.received_rows()); }
};

template <class X, class E>
ExpertTokens<E> tokens_of(const BlockContext<X>& context, const ExpertActivations<E>& layer) {
  return {layer, context.shape.rows(), context.config.experts.sent(), context.config.width, context.slices};
}

/// The same for rows of which each slice has a term: (N, slices, C), (S, slices, C).
template <class X, class E>
ExpertTokens<E> terms_of(const BlockContext<X>& context, const ExpertActivations<E>& layer) {
  return {layer, context.shape.rows(), context.config.experts.sent(), context.slices * context.config.width};
}

/// What an engine's router needs.
template <class X>
ExpertShape expert_shape(const BlockContext<X>& context) {
  return {context.config.experts, context.shape.rows(), context.shape.batch,
          member_of(context.sequences == nullptr ? nullptr : context.sequences->group)};
}

/// `rows` rows of one gated MLP.
template <class E>
struct GatedRows {
  std::size_t rows, width, feed_forward;
  E* gate;
  E* up;
  E* hidden;
};

/// y (N, slices, C).
template <class X, class E>
core::Result<void> gated_forward(const BlockContext<X>& context, const ExpertWeights& weights, const E* x,
                                 const GatedRows<E>& kept, const Pass<E>& pass, E* y) {
  const std::size_t N = kept.rows, C = kept.width, F = kept.feed_forward;
  TRY(project(context, pass, Sliced::outputs, {N, C, F}, weights.gate, x, kept.gate));
  TRY(project(context, pass, Sliced::outputs, {N, C, F}, weights.up, x, kept.up));
  context.engine.swiglu_forward(N * F, kept.gate, kept.up, kept.hidden);
  return project(context, pass, Sliced::inputs, {N, F, C}, weights.down, kept.hidden, y, Terms::by_row);
}

/// Adds to d_x (N, slices, C).
template <class X, class E>
core::Result<void> gated_backward(const BlockContext<X>& context, const ExpertWeights& weights, const E* x,
                                  const GatedRows<E>& kept, const GatedRows<E>& d, const E* d_y,
                                  const Pass<E>& pass, E* d_x) {
  const std::size_t N = kept.rows, C = kept.width, F = kept.feed_forward;
  TRY(project_backward(context, pass, Sliced::inputs, {N, F, C}, weights.down, kept.hidden, d_y, d.hidden,
                       Write::overwrite));
  context.engine.swiglu_backward(N * F, kept.gate, kept.up, d.hidden, d.gate, d.up);
  TRY(project_backward(context, pass, Sliced::outputs, {N, C, F}, weights.up, x, d.up, d_x, Write::accumulate,
                       Terms::by_row));
  return project_backward(context, pass, Sliced::outputs, {N, C, F}, weights.gate, x, d.gate, d_x,
                          Write::accumulate, Terms::by_row);
}

/// Replaces values of which each member of the group has a term by their sums.
template <class X, class V>
core::Result<void> sum_over_members(const BlockContext<X>& context, V* values, std::size_t count) {
  const auto* tensor = context.tensor;
  if (tensor == nullptr || tensor->group == nullptr) return {};
  return context.engine.sum(*tensor->group, tensor->sums, values, count);
}

/// Backward of a product that every member of the group computes whole, with the same values: the first slice
/// takes all of the gradient with respect to x (N, C), which is added to d_x (N, slices, C).
template <class X, class E>
core::Result<void> whole_backward(const BlockContext<X>& context, const Pass<E>& pass, LinearShape shape,
                                  std::size_t weight, const E* x, const E* d_y, E* d_x) {
  const E* values = TRY(pass.use(weight));
  TRY(add_to_gradient(pass, weight, [=, &engine = context.engine](const Pass<E>& at) {
    engine.linear_backward_weight(shape, d_y, x, at.gradient(weight));
  }));
  if (context.tensor != nullptr && context.tensor->index() > 0) return {};
  LinearShape into = shape;
  into.x_stride = context.slices * shape.in;
  context.engine.linear_backward_input(into, d_y, values, d_x, Write::accumulate);
  return {};
}

template <class X, class E>
core::Result<void> shared_forward(const BlockContext<X>& context, const ExpertLayerParameters& parameters,
                                  const ExpertActivations<E>& layer, const E* x, const Pass<E>& pass) {
  if (!parameters.shared) return {};
  const std::size_t N = context.shape.rows(), C = context.config.width;
  const GatedRows<E> kept{N,
                          C,
                          context.config.experts.shared_feed_forward,
                          layer.shared_gate,
                          layer.shared_up,
                          layer.shared_hidden};
  TRY(gated_forward(context, *parameters.shared, x, kept, pass, layer.shared_output));
  if (!parameters.shared_gate) return {};
  const E* gate = TRY(pass.use(*parameters.shared_gate));
  context.engine.linear_forward({N, C, 1}, x, gate, layer.shared_share);
  return {};
}

/// What backward of the shared expert's gate reads of forward.
template <class E>
struct SharedRows {
  std::size_t rows, width, slices;
  const E* gate;    ///< (N), before the sigmoid
  const E* output;  ///< (N, slices, C)
};

template <class E>
struct ExpertGradient {
  const E* x;         ///< (N, C) as in forward
  const E* d_output;  ///< (N, C)
};

/// Adds to d_x.
template <class X, class E>
core::Result<void> shared_backward(const BlockContext<X>& context, const ExpertLayerParameters& parameters,
                                   const ExpertActivations<E>& layer, const ExpertScratch<E>& scratch,
                                   const ExpertGradient<E>& gradient, const Pass<E>& pass, E* d_x) {
  if (!parameters.shared) return {};
  const std::size_t N = context.shape.rows(), C = context.config.width;
  const std::size_t G = context.config.experts.shared_feed_forward;
  const E* d_output = gradient.d_output;
  if (!parameters.shared_gate) {
    d_output = kept_for_weights(pass, d_output, N * C);
  } else {
    const SharedRows<E> rows{N, C, context.slices, layer.shared_share, layer.shared_output};
    context.engine.shared_backward(rows, d_output, scratch.shared_output, scratch.shared_share);
    d_output = scratch.shared_output;
    TRY(sum_over_members(context, scratch.shared_share, N));
    TRY(whole_backward(context, pass, {N, C, 1}, *parameters.shared_gate, gradient.x, scratch.shared_share,
                       d_x));
  }
  const GatedRows<E> kept{N, C, G, layer.shared_gate, layer.shared_up, layer.shared_hidden};
  const GatedRows<E> d{N, C, G, scratch.shared_gate, scratch.shared_up, scratch.shared_hidden};
  return gated_backward(context, *parameters.shared, gradient.x, kept, d, d_output, pass, d_x);
}

/// Where the products of experts read and write: slots if all experts are here, otherwise what ranks
/// exchange. Rows of this rank's tokens may have stayed in their slots.
template <class E>
struct ProductRows {
  const E* x;        ///< (R, C)
  E* y;              ///< (R, slices, C), or in backward the gradient with respect to y, (R, C), or to x
  E* own = nullptr;  ///< the rows from place.first_slot on, if they are not in `y`
  std::size_t rank = 0;
  core::OwnRows place{};

  E* y_of(const core::ExpertRows& part, std::size_t width) const {
    if (own == nullptr || part.source != rank) return y + static_cast<std::size_t>(part.first) * width;
    return own + static_cast<std::size_t>(part.first - place.first_received) * width;
  }
};

/// If experts are distributed over ranks.
template <class X, class E>
ProductRows<E> product_rows(const BlockContext<X>& context, const ExpertActivations<E>& layer, E* rows,
                            E* slots, std::size_t width) {
  const ExpertRoutes& routes = *layer.routes;
  if (X::kIsDevice || routes.exchange.grouped) return {layer.received, rows};
  return {layer.received, rows, slots + static_cast<std::size_t>(routes.own.first_slot) * width,
          context.config.experts.place, routes.own};
}

/// One product for each expert and source, so that each is what the source would compute alone.
template <class X, class E>
core::Result<void> experts_forward(const BlockContext<X>& context, const ExpertLayerParameters& parameters,
                                   const ExpertActivations<E>& layer, const ProductRows<E>& rows,
                                   const Pass<E>& pass) {
  const std::size_t C = context.config.width, F = context.config.experts.feed_forward;
  const auto& products = layer.routes->exchange.products;
  for (std::size_t e = 0; e < products.size(); ++e) {
    const auto& [gate, up, down] = parameters.experts[e];
    for (const core::ExpertRows& part : products[e]) {
      const auto first = static_cast<std::size_t>(part.first), count = static_cast<std::size_t>(part.count);
      if (count == 0) {
        // Members that one rank plays ask for the same parameters, whichever has rows.
        for (const std::size_t weight : {gate, up, down}) TRY(pass.use(weight));
        continue;
      }
      const GatedRows<E> kept{
          count, C, F, layer.gate + first * F, layer.up + first * F, layer.hidden + first * F};
      TRY(gated_forward(context, parameters.experts[e], rows.x + first * C, kept, pass,
                        rows.y_of(part, context.slices * C)));
    }
  }
  return {};
}

/// For one matrix of an expert, its gradient from each source, and once it is complete or deferred, what
/// follows. It is complete without rows, too: other ranks wait for it. The parts stay until the microbatch is
/// done.
template <class E, class Gradient, class Input>
core::Result<void> matrix_backward(const std::vector<core::ExpertRows>& parts, std::size_t weight,
                                   const Pass<E>& pass, const Gradient& add_gradient, const Input& go_on) {
  const E* values = TRY(pass.use(weight));
  TRY(add_to_gradient(pass, weight, [=, &parts](const Pass<E>& at) {
    ExpertPeers* peers = at.hooks.peers;
    for (const core::ExpertRows& part : parts) {
      if (part.count == 0) continue;
      add_gradient(part, peers == nullptr ? at.gradient(weight)
                                          : static_cast<SumOf<E>*>(peers->gradient(weight, part.source)));
    }
  }));
  for (const core::ExpertRows& part : parts) {
    if (part.count > 0) go_on(part, values);
  }
  return {};
}

/// The rows where the weights' half of backward finds the gradients with respect to the outputs.
template <class X, class E>
ProductRows<E> rows_for_weights(const X& engine, const ExpertTokens<E>& tokens, const ProductRows<E>& rows,
                                const Pass<E>& pass) {
  const std::size_t C = tokens.width;
  if (pass.later == nullptr) return rows;
  E* kept = pass.later->take(tokens.received() * C);
  if (rows.own == nullptr) {
    engine.copy(rows.y, kept, tokens.received() * C);
    return {rows.x, kept};
  }
  for (const auto& parts : tokens.layer.routes->exchange.products) {
    for (const core::ExpertRows& part : parts)
      engine.copy(rows.y_of(part, C), kept + static_cast<std::size_t>(part.first) * C,
                  static_cast<std::size_t>(part.count) * C);
  }
  return {rows.x, kept};
}

/// Writes to `inputs` the gradients with respect to the experts' inputs, from those with respect to their
/// outputs in `outputs`; without slices both may be the same. Every expert's gradient is then complete.
template <class X, class E>
core::Result<void> experts_backward(const BlockContext<X>& context, const ExpertLayerParameters& parameters,
                                    const ExpertActivations<E>& layer, const ExpertScratch<E>& scratch,
                                    const ProductRows<E>& outputs, const ProductRows<E>& inputs,
                                    const Pass<E>& pass) {
  const std::size_t C = context.config.width, F = context.config.experts.feed_forward;
  const X& engine = context.engine;
  const auto& products = layer.routes->exchange.products;
  const ProductRows<E> d_y = rows_for_weights(engine, tokens_of(context, layer), outputs, pass);
  using Part = core::ExpertRows;
  const auto at = [](auto* values, const Part& part, std::size_t width) {
    return values + static_cast<std::size_t>(part.first) * width;
  };
  const auto count = [](const Part& part) { return static_cast<std::size_t>(part.count); };
  for (std::size_t e = products.size(); e-- > 0;) {
    const ExpertWeights& weights = parameters.experts[e];
    TRY(matrix_backward<E>(
        products[e], weights.down, pass,
        [=, hidden = layer.hidden](const Part& part, SumOf<E>* gradient) {
          multiply_backward_weight<X, E>(context, Sliced::inputs, {count(part), F, C}, d_y.y_of(part, C),
                                         at(hidden, part, F), gradient);
        },
        [&](const Part& part, const E* values) {
          multiply_backward<X, E>(context, Sliced::inputs, {count(part), F, C}, outputs.y_of(part, C), values,
                                  at(scratch.hidden, part, F), Write::overwrite);
          engine.swiglu_backward(count(part) * F, at(layer.gate, part, F), at(layer.up, part, F),
                                 at(scratch.hidden, part, F), at(scratch.gate, part, F),
                                 at(scratch.up, part, F));
        }));
    const auto inner = [&](std::size_t weight, E* d, Write write) {
      return matrix_backward<E>(
          products[e], weight, pass,
          [=, x = outputs.x](const Part& part, SumOf<E>* gradient) {
            multiply_backward_weight<X, E>(context, Sliced::outputs, {count(part), C, F}, at(d, part, F),
                                           at(x, part, C), gradient);
          },
          [&](const Part& part, const E* values) {
            multiply_backward<X, E>(context, Sliced::outputs, {count(part), C, F}, at(d, part, F), values,
                                    inputs.y_of(part, context.slices * C), write, Terms::by_row);
          });
    };
    TRY(inner(weights.up, scratch.up, Write::overwrite));
    TRY(inner(weights.gate, scratch.gate, Write::accumulate));
  }
  return {};
}

/// With the layer's own memory for what the weights' half of its backward reads.
template <class X, class E>
ExpertScratch<E> scratch_for_weights(const BlockContext<X>& context, const ExpertLayerParameters& parameters,
                                     ExpertScratch<E> scratch, const Pass<E>& pass) {
  const ExpertConfig& config = context.config.experts;
  const std::size_t N = context.shape.rows(), C = context.config.width, R = config.most_rows(N);
  const std::size_t F = config.feed_forward, G = config.shared_feed_forward;
  if (config.ranks == 1) scratch.gathered = place_for_weights(pass, scratch.gathered, N * config.sent() * C);
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

/// What the router chooses; members that share sequences give each other their logits.
template <class X, class E>
core::Result<void> choose(const BlockContext<X>& context, const ExpertActivations<E>& layer,
                          const StepHooks& hooks) {
  using S = SumOf<E>;
  const S* all = nullptr;
  if (context.sequences != nullptr) {
    TRY(gather_pieces(context, context.config.experts.count, static_cast<const S*>(layer.logits),
                      context.sequences->logits));
    all = context.sequences->logits;
  }
  return context.engine.choose_experts(context.desk, expert_shape(context), layer, all, hooks);
}

/// output (N, slices, C) += what the experts that each row of x (N, C) chose make of it, weighed, and then
/// the shared one: one product per expert with the rows of one pass alone, which are one lane's, and for each
/// row a sum in the order of its choices: so the bits do not depend on where experts are, or on other lanes.
/// If experts are distributed over ranks (StepHooks::peers), rows go to the ranks that have their experts and
/// come back; each computes a product for every rank that the rows came from.
template <class X, class E>
core::Result<void> expert_layer_forward(const BlockContext<X>& context,
                                        const ExpertLayerParameters& parameters,
                                        const ExpertActivations<E>& layer, const E* x, const Pass<E>& pass,
                                        E* output) {
  const X& engine = context.engine;
  const std::size_t N = context.shape.rows(), C = context.config.width;
  const ExpertConfig& config = context.config.experts;
  engine.linear_forward_wide({N, C, config.count}, x, TRY(pass.use(parameters.router)), layer.logits);
  TRY(choose(context, layer, pass.hooks));
  ExpertRoutes& routes = *layer.routes;
  ExpertPeers* peers = pass.hooks.peers;
  TRY(plan_rows(config, layer.layer, peers, routes));
  const auto tokens = tokens_of(context, layer), terms = terms_of(context, layer);
  const auto shared = [&] { return shared_forward(context, parameters, layer, x, pass); };
  if (peers == nullptr) {
    engine.gather_tokens(tokens, x, layer.gathered);
    TRY(experts_forward(context, parameters, layer, {layer.gathered, layer.output}, pass));
    TRY(shared());
  } else {
    if (config.grouped) core::group_rows(routes.exchange);
    TRY(engine.tokens_to_products(context.desk, config, tokens, *peers, x, shared));
    TRY(experts_forward(context, parameters, layer,
                        product_rows(context, layer, layer.returned, layer.output, context.slices * C),
                        pass));
    TRY(engine.products_to_slots(config, terms, *peers, layer.returned, layer.moved, layer.output));
  }
  engine.combine(terms, layer.output, output);
  if (parameters.shared)
    engine.add_shared(N, context.slices * C, parameters.shared_gate ? layer.shared_share : nullptr,
                      layer.shared_output, output);
  return {};
}

/// Overwrites d_x (N, slices, C).
template <class X, class E>
core::Result<void> expert_layer_backward(const BlockContext<X>& context,
                                         const ExpertLayerParameters& parameters,
                                         const ExpertActivations<E>& layer,
                                         const ExpertScratch<E>& of_all_layers,
                                         const ExpertGradient<E>& gradient, const Pass<E>& pass, E* d_x) {
  const X& engine = context.engine;
  const std::size_t N = context.shape.rows(), C = context.config.width;
  const ExpertConfig& config = context.config.experts;
  const auto scratch = scratch_for_weights(context, parameters, of_all_layers, pass);
  const auto tokens = tokens_of(context, layer), terms = terms_of(context, layer);
  const std::size_t width = context.slices * C;
  engine.zero(d_x, N * width);
  engine.combine_backward(tokens, gradient.d_output, scratch.d_slots, scratch.weights);
  TRY(sum_over_members(context, scratch.weights, N * config.sent()));
  const auto shared = [&] {
    return shared_backward(context, parameters, layer, scratch, gradient, pass, d_x);
  };
  if (ExpertPeers* peers = pass.hooks.peers; peers != nullptr) {
    TRY(pass.use(parameters.router));  // of this layer's unit, in which its exchanges are declared
    TRY(engine.slots_to_products(config, tokens, *peers, scratch.d_slots, scratch.moved, scratch.d_rows,
                                 shared));
    TRY(experts_backward(context, parameters, layer, scratch,
                         product_rows(context, layer, scratch.d_rows, scratch.d_slots, C),
                         product_rows(context, layer, scratch.rows, scratch.slots, width), pass));
    TRY(engine.products_to_slots(config, terms, *peers, scratch.rows, scratch.moved, scratch.slots));
  } else {
    TRY(shared());
    engine.gather_tokens(tokens, gradient.x, scratch.gathered);
    TRY(experts_backward(context, parameters, layer, scratch, {scratch.gathered, scratch.d_slots},
                         {scratch.gathered, scratch.slots}, pass));
  }
  engine.gather_tokens_backward(terms, scratch.slots, d_x);
  TRY(engine.choice_backward(context.desk, expert_shape(context), layer, pass.hooks, scratch.weights,
                             scratch.logits));
  return whole_backward(context, pass, {N, C, config.count}, parameters.router, gradient.x, scratch.logits,
                        d_x);
}

}  // namespace troupe::apps::gpt
