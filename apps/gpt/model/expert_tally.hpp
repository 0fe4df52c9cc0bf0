#pragma once

#include <span>

#include "apps/gpt/model/expert_activations.hpp"
#include "core/experts/tally.hpp"

namespace troupe::apps::gpt {

using core::ExpertTally;

/// Adds where the tokens of a pass went; a layer each.
void add_pass(ExpertTally& tally, std::span<const ExpertRoutes> routes);

}  // namespace troupe::apps::gpt
