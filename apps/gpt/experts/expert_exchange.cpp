#include "apps/gpt/experts/expert_exchange.hpp"

#include <algorithm>
#include <vector>

#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Result;

namespace {

std::vector<std::int64_t> slots_of(const core::Dispatch& dispatch) {
  std::vector<std::int64_t> slots;
  for (std::size_t expert = 0; expert < dispatch.experts(); ++expert) slots.push_back(dispatch.count(expert));
  return slots;
}

}  // namespace

Result<PlannedRows> AbsentPeers::plan(std::size_t, const core::Dispatch& dispatch) {
  // Ranks that share a microbatch share its capacity, too.
  std::vector counts(config_.ranks, std::vector<std::int64_t>(dispatch.experts()));
  const std::size_t together = std::min(config_.ranks, config_.members);
  for (std::size_t rank = config_.place % together; rank < counts.size(); rank += together)
    counts[rank] = slots_of(dispatch);
  const auto most = static_cast<std::int64_t>(config_.most_rows(rows_));
  auto exchange = TRY(core::plan_exchange(config_.owners(), config_.place, counts, most));
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
  const std::vector<std::vector<std::int64_t>> counts{slots_of(routes.dispatch)};
  routes.exchange = TRY(core::plan_exchange(config.owners(), 0, counts, routes.dispatch.slots()));
  return {};
}

}  // namespace troupe::apps::gpt
