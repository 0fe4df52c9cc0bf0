#include "actors/planes/step/pass_list.hpp"

#include <algorithm>
#include <utility>

#include "core/errors.hpp"

namespace troupe::actors {

core::Result<void> take_passes(TrainingPlan& plan, std::vector<core::UnitPass> passes) {
  const auto is_sharded = [](const core::Placements& placements) {
    return std::find(placements.begin(), placements.end(), core::Placement::flat_shard) != placements.end();
  };
  const auto& placements = plan.inputs.placements;
  if (passes.empty() || !(is_sharded(placements.parameters) || is_sharded(placements.gradients))) return {};
  if (plan.resident_units > 0) {
    const auto found = std::find_if(plan.specs.begin(), plan.specs.end(),
                                    [](const core::ParameterSpec& spec) { return !spec.unit.has_value(); });
    return core::fail(core::Errc::invalid_argument,
                      "a list of passes goes through units, and {} is in none; give it the unit whose passes "
                      "read it",
                      found->name);
  }
  plan.inputs.passes = std::move(passes);
  return {};
}

}  // namespace troupe::actors
