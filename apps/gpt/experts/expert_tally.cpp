#include "apps/gpt/experts/expert_tally.hpp"

#include "core/errors.hpp"

namespace troupe::apps::gpt {

void add_pass(ExpertTally& tally, std::span<const ExpertRoutes> routes) {
  if (tally.experts() == 0) return;
  CHECK(routes.size() == tally.layers(), "there are routes for every layer");
  for (std::size_t layer = 0; layer < routes.size(); ++layer) tally.add(layer, routes[layer].dispatch);
}

}  // namespace troupe::apps::gpt
