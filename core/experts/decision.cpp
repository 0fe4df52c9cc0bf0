#include "core/experts/decision.hpp"

#include <algorithm>

#include "core/errors.hpp"

namespace troupe::core {

namespace {

template <class T>
void choose(const RouterRows<T>& rows, std::span<const T> logits, std::span<std::int32_t> experts,
            std::span<T> weights) {
  const std::vector<T> bias(rows.bias.begin(), rows.bias.end());
  route<T>(rows.rule.router, logits, bias, {experts, weights});
}

void count(RouterDecision& decision) {
  decision.chosen = decision.dispatch.chosen();
  decision.dropped = decision.dispatch.dropped;
}

/// What is decided about the rows of a microbatch together: drops, load and losses.
template <class T>
Result<void> decide(const RouterRule& rule, std::span<const T> logits, std::span<const std::int32_t> experts,
                    std::span<const T> weights, RouterDecision& decision) {
  const std::size_t count = rule.router.experts, rows = logits.size() / count;
  std::optional<std::int64_t> capacity;
  if (rule.capacity_factor) {
    capacity = TRY(
        expert_capacity(static_cast<std::int64_t>(rows), rule.router.choices, count, *rule.capacity_factor));
  }
  decision.dispatch = dispatch<T>(count, experts, weights, capacity);
  decision.loss = 0;
  if (rule.balance > 0) {
    decision.load = expert_load<T>(rule.router, logits, experts);
    decision.loss = rule.balance * balance_loss(rule.router, decision.load);
  }
  if (rule.z_loss > 0) decision.loss += rule.z_loss * z_loss<T>(count, logits);
  return {};
}

}  // namespace

template <class T>
Result<void> decide_alone(const RouterRows<T>& rows, double router_factor, RouterDecision& decision) {
  decision.experts.resize(rows.weights.size());
  choose<T>(rows, rows.logits, decision.experts, rows.weights);
  TRY(decide<T>(rows.rule, rows.logits, decision.experts, rows.weights, decision));
  count(decision);
  decision.loss *= router_factor;
  return {};
}

template <class T>
Result<void> decide_together(const RouterRows<T>& own, std::span<const T> logits, const MembersRows& members,
                             double router_factor, RouterDecision& decision) {
  const std::size_t K = own.rule.router.choices, rows = logits.size() / own.rule.router.experts;
  decision.experts.resize(own.weights.size());
  choose<T>(own, own.logits, decision.experts, own.weights);
  std::vector<std::int32_t> experts(rows * K);
  std::vector<T> weights(rows * K);
  choose<T>(own, logits, experts, weights);
  TRY(decide<T>(own.rule, logits, experts, weights, decision));
  decision.dispatch = dispatch_of_some(decision.dispatch, K, members.own, decision.experts);
  count(decision);
  decision.loss = members.is_first ? decision.loss * router_factor : 0;
  return {};
}

template <class T>
void decision_backward(const RouterRule& rule, std::span<const T> logits, const RouterDecision& decision,
                       std::size_t members, double scale, std::span<const T> d_weights,
                       std::span<T> d_logits) {
  std::fill(d_logits.begin(), d_logits.end(), T{0});
  route_backward<T>(rule.router, logits, decision.experts, d_weights, d_logits);
  if (rule.balance > 0)
    balance_backward<T>(rule.router, logits, decision.load, rule.balance * scale, d_logits);
  // Its mean is over the rows of all.
  const double part = scale / static_cast<double>(members);
  if (rule.z_loss > 0) z_loss_backward<T>(rule.router.experts, logits, rule.z_loss * part, d_logits);
}

template Result<void> decide_alone<float>(const RouterRows<float>&, double, RouterDecision&);
template Result<void> decide_alone<double>(const RouterRows<double>&, double, RouterDecision&);
template Result<void> decide_together<float>(const RouterRows<float>&, std::span<const float>,
                                             const MembersRows&, double, RouterDecision&);
template Result<void> decide_together<double>(const RouterRows<double>&, std::span<const double>,
                                              const MembersRows&, double, RouterDecision&);
template void decision_backward<float>(const RouterRule&, std::span<const float>, const RouterDecision&,
                                       std::size_t, double, std::span<const float>, std::span<float>);
template void decision_backward<double>(const RouterRule&, std::span<const double>, const RouterDecision&,
                                        std::size_t, double, std::span<const double>, std::span<double>);

}  // namespace troupe::core
