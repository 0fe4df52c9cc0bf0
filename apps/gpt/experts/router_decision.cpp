#include "apps/gpt/experts/router_decision.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "core/errors.hpp"
#include "core/experts/balance.hpp"
#include "core/experts/dispatch.hpp"
#include "core/experts/router.hpp"

namespace troupe::apps::gpt {

using core::Result;

namespace {

template <class T>
void route(const ExpertConfig& config, std::size_t layer, std::span<const T> logits,
           std::span<std::int32_t> experts, std::span<T> weights) {
  const auto biases = config.biases_of(layer);
  const std::vector<T> bias(biases.begin(), biases.end());
  core::route<T>(config.router(), logits, bias, {experts, weights});
}

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

}  // namespace

template <class T>
Result<void> decide_alone(const RouterRows<T>& rows, double router_factor, ExpertRoutes& routes) {
  routes.experts.resize(rows.weights.size());
  route<T>(rows.config, rows.layer, rows.logits, routes.experts, rows.weights);
  TRY(decide<T>(rows.config, rows.logits, routes.experts, rows.weights, routes));
  routes.loss *= router_factor;
  return {};
}

template <class T>
Result<void> decide_together(const RouterRows<T>& own, std::span<const T> logits, const MembersRows& members,
                             double router_factor, ExpertRoutes& routes) {
  const std::size_t K = own.config.choices, rows = logits.size() / own.config.count;
  routes.experts.resize(own.weights.size());
  route<T>(own.config, own.layer, own.logits, routes.experts, own.weights);
  std::vector<std::int32_t> experts(rows * K);
  std::vector<T> weights(rows * K);
  route<T>(own.config, own.layer, logits, experts, weights);
  TRY(decide<T>(own.config, logits, experts, weights, routes));
  routes.dispatch = core::dispatch_of_some(routes.dispatch, K, members.own, routes.experts);
  routes.loss = members.is_first ? routes.loss * router_factor : 0;
  return {};
}

template <class T>
void decision_backward(const ExpertConfig& config, std::span<const T> logits, const ExpertRoutes& routes,
                       const RouterShare& share, const StepHooks& hooks, std::span<const T> d_weights,
                       std::span<T> d_logits) {
  const auto router = config.router();
  std::fill(d_logits.begin(), d_logits.end(), T{0});
  core::route_backward<T>(router, logits, routes.experts, d_weights, d_logits);
  if (!share.adds_losses) return;
  const double scale = hooks.router_scale.value_or(hooks.loss_scale) * hooks.router_factor;
  if (config.balance > 0)
    core::balance_backward<T>(router, logits, routes.load, config.balance * scale, d_logits);
  // Its mean is over the rows of all.
  const double part = scale / static_cast<double>(share.members);
  if (config.z_loss > 0) core::z_loss_backward<T>(config.count, logits, config.z_loss * part, d_logits);
}

template Result<void> decide_alone<float>(const RouterRows<float>&, double, ExpertRoutes&);
template Result<void> decide_alone<double>(const RouterRows<double>&, double, ExpertRoutes&);
template Result<void> decide_together<float>(const RouterRows<float>&, std::span<const float>,
                                             const MembersRows&, double, ExpertRoutes&);
template Result<void> decide_together<double>(const RouterRows<double>&, std::span<const double>,
                                              const MembersRows&, double, ExpertRoutes&);
template void decision_backward<float>(const ExpertConfig&, std::span<const float>, const ExpertRoutes&,
                                       const RouterShare&, const StepHooks&, std::span<const float>,
                                       std::span<float>);
template void decision_backward<double>(const ExpertConfig&, std::span<const double>, const ExpertRoutes&,
                                        const RouterShare&, const StepHooks&, std::span<const double>,
                                        std::span<double>);

}  // namespace troupe::apps::gpt
