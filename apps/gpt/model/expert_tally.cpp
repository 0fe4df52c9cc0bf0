#include "apps/gpt/model/expert_tally.hpp"

#include "core/errors.hpp"

namespace troupe::apps::gpt {

void add_pass(ExpertTally& tally, std::span<const ExpertRoutes> routes) {
  if (tally.experts() == 0) return;
  CHECK(routes.size() == tally.layers(), "there are routes for every layer");
  for (std::size_t layer = 0; layer < routes.size(); ++layer) {
    // A layer without experts counts nothing.
    if (!routes[layer].chosen.empty()) tally.add(layer, routes[layer].chosen, routes[layer].dropped);
  }
}

}  // namespace troupe::apps::gpt
