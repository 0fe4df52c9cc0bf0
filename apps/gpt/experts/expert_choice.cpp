#include "apps/gpt/experts/expert_choice.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "apps/gpt/context/sequence_pieces.hpp"
#include "core/errors.hpp"
#include "core/experts/balance.hpp"
#include "core/experts/dispatch.hpp"
#include "core/experts/router.hpp"

namespace troupe::apps::gpt {

// N rows, E experts, K choices of a row, T tokens of whole sequences.

using core::Result;

namespace {

/// What is decided about the rows of a microbatch together: drops, load and losses.
template <class T>
Result<void> decide(const ExpertConfig& config, std::span<const T> logits,
                    std::span<const std::int32_t> experts, std::span<const T> weights, ExpertRoutes& routes) {
  const auto router = config.router();
  const std::size_t rows = logits.size() / config.count;
  std::optional<std::int64_t> capacity;
  if (config.capacity_factor) {
    capacity = TRY(core::expert_capacity(static_cast<std::int64_t>(rows), config.choices, config.count,
                                         *config.capacity_factor));
  }
  routes.dispatch = core::dispatch<T>(config.count, experts, weights, capacity);
  routes.load = core::expert_load<T>(router, logits, experts);
  routes.loss = config.balance * core::balance_loss(router, routes.load);
  if (config.z_loss > 0) routes.loss += config.z_loss * core::z_loss<T>(config.count, logits);
  return {};
}

template <class T>
Result<void> decide_together(const ExpertShape<T>& shape, std::span<const T> own, std::span<const T> bias,
                             const StepHooks& hooks, ExpertRoutes& routes) {
  const std::size_t E = shape.config.count, K = shape.config.choices;
  const ContextParallel<T>& across = *shape.across;
  const BatchShape batch{shape.sequences, shape.rows / shape.sequences};
  const SequencePieces<T> pieces(*across.group, across.exchanged, batch, E);
  TRY(pieces.gather(own.data(), across.logits));
  CHECK(!hooks.length || (shape.sequences == 1 && *hooks.length <= pieces.length()),
        "one sequence was filled up");
  const std::size_t rows = hooks.length.value_or(shape.sequences * pieces.length());
  const std::span<const T> logits(across.logits, rows * E);
  std::vector<std::int32_t> experts(rows * K);
  std::vector<T> weights(rows * K);
  core::route<T>(shape.config.router(), logits, bias, {experts, weights});
  TRY(decide<T>(shape.config, logits, experts, weights, routes));
  routes.dispatch = core::dispatch_of_some(routes.dispatch, K, pieces.own_rows(), routes.experts);
  if (across.group->index() > 0) routes.loss = 0;
  return {};
}

}  // namespace

template <class T>
Result<void> choose_experts(const ExpertShape<T>& shape, const ExpertActivations<T>& layer,
                            const StepHooks& hooks) {
  const ExpertConfig& config = shape.config;
  const std::span<const T> logits(layer.logits, shape.rows * config.count);
  const std::span<T> weights(layer.weights, shape.rows * config.choices);
  ExpertRoutes& routes = *layer.routes;
  routes.experts.resize(weights.size());
  const auto biases = config.biases_of(layer.layer);
  const std::vector<T> bias(biases.begin(), biases.end());
  core::route<T>(config.router(), logits, bias, {routes.experts, weights});
  if (shape.across != nullptr) return decide_together<T>(shape, logits, bias, hooks, routes);
  return decide<T>(config, logits, routes.experts, weights, routes);
}

template <class T>
void choice_backward(const ExpertShape<T>& shape, const ExpertActivations<T>& layer, const StepHooks& hooks,
                     std::span<const T> d_weights, std::span<T> d_logits) {
  const ExpertConfig& config = shape.config;
  const auto router = config.router();
  const ExpertRoutes& routes = *layer.routes;
  const std::span<const T> logits(layer.logits, d_logits.size());
  std::fill(d_logits.begin(), d_logits.end(), T{0});
  core::route_backward<T>(router, logits, routes.experts, d_weights, d_logits);
  if (!shape.adds_losses) return;
  const double scale = hooks.router_scale.value_or(hooks.loss_scale);
  if (config.balance > 0)
    core::balance_backward<T>(router, logits, routes.load, config.balance * scale, d_logits);
  // Its mean is over the rows of all.
  const double part = shape.across != nullptr ? 1 / static_cast<double>(shape.across->group->size()) : 1;
  if (config.z_loss > 0)
    core::z_loss_backward<T>(config.count, logits, config.z_loss * scale * part, d_logits);
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
