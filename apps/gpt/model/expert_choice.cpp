#include "apps/gpt/model/expert_choice.hpp"

#include "apps/gpt/model/sequence_part.hpp"
#include "apps/gpt/model/sequence_pieces.hpp"
#include "core/errors.hpp"
#include "core/experts/decision.hpp"

namespace troupe::apps::gpt {

using core::Result;

namespace {

/// For each part of an expert its choice again.
template <class T>
void take_parts(const ExpertConfig& config, std::span<T> weights, ExpertRoutes& routes) {
  if (config.parts == 1 && config.columns == 1) return;
  for (std::size_t i = weights.size(); i-- > 0;) weights[i] = weights[i / config.parts];
  routes.dispatch = core::dispatch_of_parts(config.spread(), routes.dispatch);
}

}  // namespace

template <class T>
Result<void> choose_experts(const ExpertShape<T>& shape, const ExpertActivations<T>& layer,
                            const StepHooks& hooks) {
  const ExpertConfig& config = shape.config;
  const core::RouterRows<T> own{config.rule(),
                                config.biases_of(layer.layer),
                                {layer.logits, shape.rows * config.count},
                                {layer.weights, shape.rows * config.choices}};
  ExpertRoutes& routes = *layer.routes;
  const std::span<T> weights(layer.weights, shape.rows * config.sent());
  if (shape.across == nullptr) {
    TRY(core::decide_alone(own, hooks.router_factor, routes));
    take_parts(config, weights, routes);
    return {};
  }
  const ContextParallel<T>& across = *shape.across;
  const BatchShape batch{shape.sequences, shape.rows / shape.sequences};
  const SequencePieces<T> pieces(*across.group, across.exchanged, batch, config.count);
  TRY(pieces.gather(layer.logits, across.logits));
  CHECK(!hooks.length || (shape.sequences == 1 && *hooks.length <= pieces.length()),
        "one sequence was filled up");
  const SequencePart part({batch.batch, pieces.length()}, member_of(across.group));
  const std::size_t rows = hooks.length.value_or(shape.sequences * pieces.length());
  TRY(core::decide_together<T>(own, {across.logits, rows * config.count},
                               {part.own_rows(), across.group->index() == 0}, hooks.router_factor, routes));
  take_parts(config, weights, routes);
  return {};
}

template <class T>
void choice_backward(const ExpertShape<T>& shape, const ExpertActivations<T>& layer, const StepHooks& hooks,
                     std::span<T> d_weights, std::span<T> d_logits) {
  const std::size_t parts = shape.config.parts, chosen = d_weights.size() / parts;
  for (std::size_t i = 0; parts > 1 && i < chosen; ++i) {
    T sum = d_weights[i * parts];
    for (std::size_t part = 1; part < parts; ++part) sum += d_weights[i * parts + part];
    d_weights[i] = sum;
  }
  const core::RouterShare share{shape.adds_losses, shape.across != nullptr ? shape.across->group->size() : 1};
  core::decision_backward<T>(shape.config.rule(), {layer.logits, d_logits.size()}, *layer.routes, share,
                             hooks.scale_of_router(), d_weights.first(chosen), d_logits);
}

template Result<void> choose_experts<float>(const ExpertShape<float>&, const ExpertActivations<float>&,
                                            const StepHooks&);
template Result<void> choose_experts<double>(const ExpertShape<double>&, const ExpertActivations<double>&,
                                             const StepHooks&);
template void choice_backward<float>(const ExpertShape<float>&, const ExpertActivations<float>&,
                                     const StepHooks&, std::span<float>, std::span<float>);
template void choice_backward<double>(const ExpertShape<double>&, const ExpertActivations<double>&,
                                      const StepHooks&, std::span<double>, std::span<double>);

}  // namespace troupe::apps::gpt
