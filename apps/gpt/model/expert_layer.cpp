#include "apps/gpt/model/expert_layer.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "apps/gpt/layers/activation.hpp"
#include "apps/gpt/model/expert_choice.hpp"
#include "apps/gpt/model/expert_exchange.hpp"
#include "apps/gpt/model/projection.hpp"
#include "core/errors.hpp"
#include "core/experts/row_move.hpp"

namespace troupe::apps::gpt {

// N rows, C width, E experts, K choices of a row, S slots, F feed_forward of an expert, G of the shared one.

using core::Result;

namespace {

/// One gated MLP, or its rows of those of all experts.
template <class T>
struct Gated {
  T* gate;
  T* up;
  T* hidden;

  Gated at(std::size_t element) const { return {gate + element, up + element, hidden + element}; }
};

/// rows, width, and the elements between the halves
struct GatedShape {
  std::size_t rows, width, feed_forward;
};

template <class T>
Result<void> gated_forward(const GatedShape& shape, const ExpertWeights& weights, const T* x,
                           const Gated<T>& kept, const Pass<T>& pass, T* y) {
  const auto [N, C, F] = shape;
  TRY(project(pass, {N, C, F}, weights.gate, x, kept.gate));
  TRY(project(pass, {N, C, F}, weights.up, x, kept.up));
  swiglu_forward(N * F, kept.gate, kept.up, kept.hidden);
  return project(pass, {N, F, C}, weights.down, kept.hidden, y);
}

/// d_x may be d_y.
template <class T>
Result<void> gated_backward(const GatedShape& shape, const ExpertWeights& weights, const T* x,
                            const Gated<T>& kept, const Gated<T>& d, const T* d_y, const Pass<T>& pass,
                            T* d_x, Write write) {
  const auto [N, C, F] = shape;
  TRY(project_backward(pass, {N, F, C}, weights.down, kept.hidden, d_y, d.hidden, Write::overwrite));
  swiglu_backward(N * F, kept.gate, kept.up, d.hidden, d.gate, d.up);
  TRY(project_backward(pass, {N, C, F}, weights.up, x, d.up, d_x, write));
  return project_backward(pass, {N, C, F}, weights.gate, x, d.gate, d_x, Write::accumulate);
}

/// The same of every layer with experts: views of what was carved, with the shapes that routing wants.
template <class T>
struct Views {
  Views(const ExpertShape<T>& shape, const ExpertActivations<T>& layer)
      : N(shape.rows),
        C(shape.width),
        E(shape.config.count),
        K(shape.config.sent()),
        F(shape.config.feed_forward),
        logits(layer.logits, N * E),
        weights(layer.weights, N * K) {}

  std::span<T> slots(T* data, const core::Dispatch& dispatch) const {
    return {data, static_cast<std::size_t>(dispatch.slots()) * C};
  }
  std::span<T> rows(T* data, const ExpertRoutes& routes) const {
    return {data, static_cast<std::size_t>(routes.exchange.received_rows()) * C};
  }

  std::size_t N, C, E, K, F;
  std::span<T> logits, weights;
};

template <class T>
Result<void> shared_forward(const ExpertShape<T>& shape, const ExpertLayerParameters& parameters,
                            const ExpertActivations<T>& layer, const T* x, const Pass<T>& pass) {
  if (!parameters.shared) return {};
  const std::size_t N = shape.rows, C = shape.width;
  const Gated<T> kept{layer.shared_gate, layer.shared_up, layer.shared_hidden};
  TRY(gated_forward<T>({N, C, shape.config.shared_feed_forward}, *parameters.shared, x, kept, pass,
                       layer.shared_output));
  if (parameters.shared_gate) {
    TRY(project(pass, {N, C, 1}, *parameters.shared_gate, x, layer.shared_share));
    for (std::size_t n = 0; n < N; ++n)
      layer.shared_share[n] = T{1} / (T{1} + std::exp(-layer.shared_share[n]));
  }
  return {};
}

template <class T>
void add_shared(const ExpertShape<T>& shape, const ExpertLayerParameters& parameters,
                const ExpertActivations<T>& layer, T* output) {
  if (!parameters.shared) return;
  const std::size_t N = shape.rows, C = shape.width;
  for (std::size_t n = 0; n < N; ++n) {
    const T share = parameters.shared_gate ? layer.shared_share[n] : T{1};
    for (std::size_t c = n * C; c < (n + 1) * C; ++c) output[c] += share * layer.shared_output[c];
  }
}

/// From the gradient by what it added to the output; adds to d_x.
template <class T>
Result<void> shared_backward(const ExpertShape<T>& shape, const ExpertLayerParameters& parameters,
                             const ExpertActivations<T>& layer, const ExpertScratch<T>& scratch,
                             const ExpertGradient<T>& gradient, const Pass<T>& pass, T* d_x) {
  if (!parameters.shared) return {};
  const std::size_t N = shape.rows, C = shape.width;
  const T* d_y = gradient.d_output;
  if (parameters.shared_gate) {
    for (std::size_t n = 0; n < N; ++n) {
      const T share = layer.shared_share[n];
      double product = 0;
      for (std::size_t c = n * C; c < (n + 1) * C; ++c) {
        product += static_cast<double>(layer.shared_output[c]) * static_cast<double>(d_y[c]);
        scratch.shared_output[c] = share * d_y[c];
      }
      scratch.shared_share[n] = static_cast<T>(product) * share * (T{1} - share);
    }
    d_y = scratch.shared_output;
    TRY(project_backward(pass, {N, C, 1}, *parameters.shared_gate, gradient.x, scratch.shared_share, d_x,
                         Write::accumulate));
  }
  const Gated<T> kept{layer.shared_gate, layer.shared_up, layer.shared_hidden};
  const Gated<T> d{scratch.shared_gate, scratch.shared_up, scratch.shared_hidden};
  return gated_backward<T>({N, C, shape.config.shared_feed_forward}, *parameters.shared, gradient.x, kept, d,
                           d_y, pass, d_x, Write::accumulate);
}

/// Where the products of experts read and write: slots where all experts are here, else what ranks exchange,
/// and for rows of this rank's tokens the slots all the same, so that they are moved nowhere.
template <class T>
struct ProductRows {
  const T* x;        ///< (R, C)
  T* y;              ///< (R, C), or of a backward from the gradient by it to that by x
  T* own = nullptr;  ///< the rows from place.first_slot on, where they are not in `y`
  std::size_t rank = 0;
  core::OwnRows place{};

  T* y_of(const core::ExpertRows& part, std::size_t width) const {
    if (own == nullptr || part.source != rank) return y + static_cast<std::size_t>(part.first) * width;
    return own + static_cast<std::size_t>(part.first - place.first_received) * width;
  }
};

template <class T>
ProductRows<T> product_rows(const ExpertShape<T>& shape, const ExpertActivations<T>& layer, T* rows,
                            T* slots) {
  const ExpertRoutes& routes = *layer.routes;
  if (routes.exchange.grouped) return {layer.received, rows};
  return {layer.received, rows, slots + static_cast<std::size_t>(routes.own.first_slot) * shape.width,
          shape.config.place, routes.own};
}

/// One product for each expert and source, so that each is what the source would compute alone.
template <class T>
Result<void> experts_forward(const Views<T>& view, const ExpertLayerParameters& parameters,
                             const ExpertActivations<T>& layer, const ProductRows<T>& rows,
                             const Pass<T>& pass) {
  const auto& products = layer.routes->exchange.products;
  for (std::size_t e = 0; e < products.size(); ++e) {
    for (const core::ExpertRows& part : products[e]) {
      const auto first = static_cast<std::size_t>(part.first), count = static_cast<std::size_t>(part.count);
      if (count == 0) continue;
      const auto kept = Gated<T>{layer.gate, layer.up, layer.hidden}.at(first * view.F);
      TRY(gated_forward<T>({count, view.C, view.F}, parameters.experts[e], rows.x + first * view.C, kept,
                           pass, rows.y_of(part, view.C)));
    }
  }
  return {};
}

/// The rows of one source that an expert has: (n, C) or (n, F) as what they are pieces of.
template <class T>
struct SourceRows {
  std::size_t source, rows;
  const T* x;
  T* y;
  Gated<T> kept, d;
};

/// Those of expert `e`, without the sources that have none.
template <class T>
std::vector<SourceRows<T>> rows_of_expert(const Views<T>& view, const ExpertActivations<T>& layer,
                                          const ExpertScratch<T>& scratch, const ProductRows<T>& rows,
                                          std::size_t e) {
  std::vector<SourceRows<T>> found;
  for (const core::ExpertRows& part : layer.routes->exchange.products[e]) {
    const auto first = static_cast<std::size_t>(part.first), count = static_cast<std::size_t>(part.count);
    if (count == 0) continue;
    const Gated<T> kept{layer.gate, layer.up, layer.hidden}, d{scratch.gate, scratch.up, scratch.hidden};
    found.push_back({part.source, count, rows.x + first * view.C, rows.y_of(part, view.C),
                     kept.at(first * view.F), d.at(first * view.F)});
  }
  return found;
}

/// One product of a gradient by a matrix: x (rows, in), d_y (rows, out).
template <class T>
struct SourceFactors {
  std::size_t source, rows;
  const T* x;
  const T* d_y;
};

/// The gradient of a matrix of an expert, one product per source. It is complete then, also without any:
/// other ranks wait for it. After pass.use().
template <class T>
void add_expert_gradient(const Pass<T>& pass, std::size_t in, std::size_t out, std::size_t weight,
                         std::vector<SourceFactors<T>> products) {
  for (auto& product : products) product.d_y = kept_for_weights(pass, product.d_y, product.rows * out);
  add_to_gradient(pass, weight, [=](const Pass<T>& at) {
    ExpertPeers* const peers = at.hooks.peers;
    for (const auto& [source, rows, x, d_y] : products) {
      T* gradient = peers == nullptr ? at.gradient(weight) : static_cast<T*>(peers->gradient(weight, source));
      linear_backward_weight({rows, in, out}, d_y, x, gradient);
    }
  });
}

/// In rows.y from the gradient by the outputs of the experts to that by their inputs.
template <class T>
Result<void> experts_backward(const Views<T>& view, const ExpertLayerParameters& parameters,
                              const ExpertActivations<T>& layer, const ExpertScratch<T>& scratch,
                              const ProductRows<T>& rows, const Pass<T>& pass) {
  const std::size_t C = view.C, F = view.F;
  for (std::size_t e = layer.routes->exchange.products.size(); e-- > 0;) {
    const ExpertWeights& weights = parameters.experts[e];
    const auto sources = rows_of_expert(view, layer, scratch, rows, e);
    const auto factors = [&](const auto& of) {
      std::vector<SourceFactors<T>> products;
      for (const auto& part : sources) {
        const auto [x, d_y] = of(part);
        products.push_back({part.source, part.rows, x, d_y});
      }
      return products;
    };
    using Part = SourceRows<T>;
    const T* down = TRY(pass.use(weights.down));
    add_expert_gradient<T>(pass, F, C, weights.down,
                           factors([](const Part& part) { return std::pair(part.kept.hidden, part.y); }));
    for (const Part& part : sources) {
      linear_backward_input({part.rows, F, C}, part.y, down, part.d.hidden);
      swiglu_backward(part.rows * F, part.kept.gate, part.kept.up, part.d.hidden, part.d.gate, part.d.up);
    }
    const T* up = TRY(pass.use(weights.up));
    add_expert_gradient<T>(pass, C, F, weights.up,
                           factors([](const Part& part) { return std::pair(part.x, part.d.up); }));
    for (const Part& part : sources) linear_backward_input({part.rows, C, F}, part.d.up, up, part.y);
    const T* gate = TRY(pass.use(weights.gate));
    add_expert_gradient<T>(pass, C, F, weights.gate,
                           factors([](const Part& part) { return std::pair(part.x, part.d.gate); }));
    for (const Part& part : sources)
      linear_backward_input({part.rows, C, F}, part.d.gate, gate, part.y, Write::accumulate);
  }
  return {};
}

}  // namespace

template <class T>
Result<void> expert_layer_forward(const ExpertShape<T>& shape, const ExpertLayerParameters& parameters,
                                  const ExpertActivations<T>& layer, const T* x, const Pass<T>& pass,
                                  T* output) {
  const Views<T> view(shape, layer);
  TRY(project(pass, {view.N, view.C, view.E}, parameters.router, x, layer.logits));
  TRY(choose_experts(shape, layer, pass.hooks));
  ExpertRoutes& routes = *layer.routes;
  const auto& dispatch = routes.dispatch;
  ExpertPeers* peers = pass.hooks.peers;
  TRY(plan_rows(shape.config, layer.layer, peers, routes));
  const std::span<const T> tokens(x, view.N * view.C);
  const auto shared = [&] { return shared_forward(shape, parameters, layer, x, pass); };
  if (peers == nullptr) {
    core::gather_tokens<T>(dispatch, view.K, view.C, tokens, view.slots(layer.gathered, dispatch));
    TRY(experts_forward<T>(view, parameters, layer, {layer.gathered, layer.output}, pass));
    TRY(shared());
  } else {
    const std::size_t place = shape.config.place;
    if (shape.config.grouped) core::group_rows(routes.exchange);
    routes.own = core::own_rows(shape.config.owners(), place, dispatch, routes.exchange);
    const RowsOfExchange out{layer.layer, routes.number, true}, back{layer.layer, routes.number, false};
    TRY(exchange_rows<T>(out, core::tokens_to_products(dispatch, view.K, routes.exchange), view.C, *peers,
                         tokens, view.rows(layer.received, routes), shared));
    TRY(experts_forward<T>(view, parameters, layer, product_rows(shape, layer, layer.returned, layer.output),
                           pass));
    TRY(exchange_rows<T>(back, core::products_to_slots(routes.own, place, routes.exchange), view.C, *peers,
                         view.rows(layer.returned, routes), view.slots(layer.output, dispatch), nothing));
  }
  core::combine<T>(dispatch, view.K, view.C, view.weights, view.slots(layer.output, dispatch),
                   {output, view.N * view.C});
  add_shared(shape, parameters, layer, output);
  return {};
}

template <class T>
Result<void> expert_layer_backward(const ExpertShape<T>& shape, const ExpertLayerParameters& parameters,
                                   const ExpertActivations<T>& layer, const ExpertScratch<T>& scratch,
                                   const ExpertGradient<T>& gradient, const Pass<T>& pass, T* d_x) {
  const Views<T> view(shape, layer);
  const ExpertRoutes& routes = *layer.routes;
  const auto& dispatch = routes.dispatch;
  const std::span<T> d_tokens(d_x, view.N * view.C), d_slots = view.slots(scratch.slots, dispatch);
  const std::span<T> d_weights(scratch.weights, view.N * view.K), d_logits(scratch.logits, view.N * view.E);
  std::fill(d_tokens.begin(), d_tokens.end(), T{0});
  const auto shared = [&] { return shared_backward(shape, parameters, layer, scratch, gradient, pass, d_x); };
  core::combine_backward<T>(dispatch, view.K, view.C, view.weights, view.slots(layer.output, dispatch),
                            {gradient.d_output, view.N * view.C}, d_slots, d_weights);
  if (ExpertPeers* peers = pass.hooks.peers; peers != nullptr) {
    const std::size_t place = shape.config.place;
    const std::span<T> rows = view.rows(scratch.rows, routes);
    const RowsOfExchange out{layer.layer, routes.number, true}, back{layer.layer, routes.number, false};
    TRY(pass.use(parameters.router));  // of this layer's unit, in which its exchanges are declared
    TRY(exchange_rows<T>(out, core::slots_to_products(routes.own, place, routes.exchange), view.C, *peers,
                         d_slots, rows, shared));
    TRY(experts_backward<T>(view, parameters, layer, scratch,
                            product_rows(shape, layer, scratch.rows, scratch.slots), pass));
    TRY(exchange_rows<T>(back, core::products_to_slots(routes.own, place, routes.exchange), view.C, *peers,
                         rows, d_slots, nothing));
  } else {
    TRY(shared());
    core::gather_tokens<T>(dispatch, view.K, view.C, {gradient.x, view.N * view.C},
                           view.slots(scratch.gathered, dispatch));
    // Other layers gather there too before the weights' half runs.
    const std::size_t elements = view.slots(scratch.gathered, dispatch).size();
    const T* x = kept_for_weights(pass, scratch.gathered, elements);
    TRY(experts_backward<T>(view, parameters, layer, scratch, {x, scratch.slots}, pass));
  }
  core::gather_tokens_backward<T>(dispatch, view.K, view.C, d_slots, d_tokens);

  choice_backward<T>(shape, layer, pass.hooks, d_weights, d_logits);
  return project_backward(pass, {view.N, view.C, view.E}, parameters.router, gradient.x, scratch.logits, d_x,
                          Write::accumulate);
}

template Result<void> expert_layer_forward<float>(const ExpertShape<float>&, const ExpertLayerParameters&,
                                                  const ExpertActivations<float>&, const float*,
                                                  const Pass<float>&, float*);
template Result<void> expert_layer_forward<double>(const ExpertShape<double>&, const ExpertLayerParameters&,
                                                   const ExpertActivations<double>&, const double*,
                                                   const Pass<double>&, double*);
template Result<void> expert_layer_backward<float>(const ExpertShape<float>&, const ExpertLayerParameters&,
                                                   const ExpertActivations<float>&,
                                                   const ExpertScratch<float>&, const ExpertGradient<float>&,
                                                   const Pass<float>&, float*);
template Result<void> expert_layer_backward<double>(const ExpertShape<double>&, const ExpertLayerParameters&,
                                                    const ExpertActivations<double>&,
                                                    const ExpertScratch<double>&,
                                                    const ExpertGradient<double>&, const Pass<double>&,
                                                    double*);

}  // namespace troupe::apps::gpt
