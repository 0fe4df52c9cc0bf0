#include "apps/gpt/model/expert_choice.hpp"

#include "apps/gpt/model/sequence_part.hpp"
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
Result<void> choose_experts(const ExpertShape& shape, const ExpertActivations<T>& layer, const T* all,
                            const StepHooks& hooks) {
  const ExpertConfig& config = shape.config;
  const core::RouterRows<T> own{config.rule(),
                                config.biases_of(layer.layer),
                                {layer.logits, shape.rows * config.count},
                                {layer.sent.weights, shape.rows * config.choices}};
  ExpertRoutes& routes = *layer.routes;
  if (shape.member.members == 1) {
    TRY(core::decide_alone(own, hooks.router_factor, routes));
  } else {
    const std::size_t length = shape.rows / shape.sequences * shape.member.members;
    const SequencePart part({shape.sequences, length}, shape.member);
    CHECK(!hooks.length || (shape.sequences == 1 && *hooks.length <= length), "one sequence was filled up");
    const std::size_t rows = hooks.length.value_or(shape.sequences * length);
    TRY(core::decide_together<T>(own, {all, rows * config.count}, {part.own_rows(), shape.member.index == 0},
                                 hooks.router_factor, routes));
  }
  take_parts(config, std::span<T>(layer.sent.weights, shape.rows * config.sent()), routes);
  return {};
}

template <class T>
void choice_backward(const ExpertShape& shape, const ExpertActivations<T>& layer, const StepHooks& hooks,
                     std::span<T> d_weights, std::span<T> d_logits) {
  const std::size_t parts = shape.config.parts, chosen = d_weights.size() / parts;
  for (std::size_t i = 0; parts > 1 && i < chosen; ++i) {
    T sum = d_weights[i * parts];
    for (std::size_t part = 1; part < parts; ++part) sum += d_weights[i * parts + part];
    d_weights[i] = sum;
  }
  core::decision_backward<T>(shape.config.rule(), {layer.logits, d_logits.size()}, *layer.routes,
                             shape.member.members, hooks.scale_of_router(), d_weights.first(chosen),
                             d_logits);
}

template decltype(choose_experts<float>) choose_experts<float>;
template decltype(choose_experts<double>) choose_experts<double>;
template decltype(choice_backward<float>) choice_backward<float>;
template decltype(choice_backward<double>) choice_backward<double>;

}  // namespace troupe::apps::gpt
