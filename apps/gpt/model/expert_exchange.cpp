#include "apps/gpt/model/expert_exchange.hpp"

#include <algorithm>

#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Result;

Result<PlannedRows> AbsentPeers::plan(std::size_t, const core::Dispatch& dispatch) {
  const auto most = static_cast<std::int64_t>(config_.most_rows(rows_));
  // Ranks that share a microbatch share its capacity, too.
  const std::size_t together = std::min(config_.ranks, config_.members / config_.members_of_rank);
  auto exchange = TRY(core::plan_without_others(config_.owners(), config_.place, together, dispatch, most));
  return PlannedRows{0, std::move(exchange)};
}

Result<void> plan_rows(const ExpertConfig& config, std::size_t layer, ExpertPeers* peers,
                       ExpertRoutes& routes) {
  CHECK((peers != nullptr) == (config.ranks > 1), "a pass over experts of other ranks has them as peers");
  if (peers != nullptr) {
    auto planned = TRY(peers->plan(layer, routes.dispatch));
    routes.number = planned.number;
    routes.exchange = std::move(planned.exchange);
    return {};
  }
  routes.exchange = core::exchange_alone(routes.dispatch);
  return {};
}

}  // namespace troupe::apps::gpt
