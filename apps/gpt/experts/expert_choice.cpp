#include "apps/gpt/experts/expert_choice.hpp"

#include "apps/gpt/context/sequence_part.hpp"
#include "apps/gpt/context/sequence_pieces.hpp"
#include "core/errors.hpp"
#include "core/experts/decision.hpp"

namespace troupe::apps::gpt {

using core::Result;

template <class T>
Result<void> choose_experts(const ExpertShape<T>& shape, const ExpertActivations<T>& layer,
                            const StepHooks& hooks) {
  const ExpertConfig& config = shape.config;
  const core::RouterRows<T> own{config.rule(),
                                config.biases_of(layer.layer),
                                {layer.logits, shape.rows * config.count},
                                {layer.weights, shape.rows * config.choices}};
  ExpertRoutes& routes = *layer.routes;
  if (shape.across == nullptr) return core::decide_alone(own, hooks.router_factor, routes);
  const ContextParallel<T>& across = *shape.across;
  const BatchShape batch{shape.sequences, shape.rows / shape.sequences};
  const SequencePieces<T> pieces(*across.group, across.exchanged, batch, config.count);
  TRY(pieces.gather(layer.logits, across.logits));
  CHECK(!hooks.length || (shape.sequences == 1 && *hooks.length <= pieces.length()),
        "one sequence was filled up");
  const SequencePart part({batch.batch, pieces.length()}, member_of(across.group));
  const std::size_t rows = hooks.length.value_or(shape.sequences * pieces.length());
  return core::decide_together<T>(own, {across.logits, rows * config.count},
                                  {part.own_rows(), across.group->index() == 0}, hooks.router_factor, routes);
}

template <class T>
void choice_backward(const ExpertShape<T>& shape, const ExpertActivations<T>& layer, const StepHooks& hooks,
                     std::span<const T> d_weights, std::span<T> d_logits) {
  const core::RouterShare share{shape.adds_losses, shape.across != nullptr ? shape.across->group->size() : 1};
  core::decision_backward<T>(shape.config.rule(), {layer.logits, d_logits.size()}, *layer.routes, share,
                             hooks.scale_of_router(), d_weights, d_logits);
}

template Result<void> choose_experts<float>(const ExpertShape<float>&, const ExpertActivations<float>&,
                                            const StepHooks&);
template Result<void> choose_experts<double>(const ExpertShape<double>&, const ExpertActivations<double>&,
                                             const StepHooks&);
template void choice_backward<float>(const ExpertShape<float>&, const ExpertActivations<float>&,
                                     const StepHooks&, std::span<const float>, std::span<float>);
template void choice_backward<double>(const ExpertShape<double>&, const ExpertActivations<double>&,
                                      const StepHooks&, std::span<const double>, std::span<double>);

}  // namespace troupe::apps::gpt
