#include "apps/gpt/rank/stage_passes.hpp"

#include <algorithm>

#include "core/errors.hpp"
#include "core/plan/mesh.hpp"
#include "core/program/plan_program.hpp"

namespace troupe::apps::gpt {

using core::Result;

Result<StageDeal> deal_of(const TrainerOptions& options, PipelinePlace place) {
  const auto& training = options.session.training;
  core::MeshSizes sizes;
  sizes.tp = training.tensor_parallel;
  sizes.cp = training.context_parallel;
  sizes.pp = training.pipeline_parallel;
  sizes.dp = place.world.value / (sizes.tp * sizes.cp * sizes.pp);
  sizes.optimizer_instances = training.optimizer_instances;
  const auto mesh = TRY(core::Mesh::create(sizes));
  auto inputs = TRY(core::inputs_of(training.strategy, mesh));
  inputs.lanes = training.lanes > 0 ? training.lanes : sizes.dp;
  const auto coordinates = core::coordinates_in(inputs.domains[0], mesh, place.rank);
  const auto deal = TRY(core::deal_of(inputs));
  return StageDeal{TRY(core::rounds_of(inputs, coordinates)), deal.dealt(coordinates).count};
}

Result<core::PipelineSchedule> schedule_of_rounds(const TrainerOptions& options, StageDeal deal) {
  const auto& training = options.session.training;
  return core::plan_schedule({.kind = options.pipeline.schedule,
                              .stages = training.pipeline_parallel,
                              .chunks = options.pipeline.chunks,
                              .microbatches = deal.rounds * training.microbatches});
}

core::PipelineSchedule played(core::PipelineSchedule rounds, int microbatches) {
  rounds.microbatches = microbatches;
  for (auto& stage : rounds.passes) {
    const auto rest = std::remove_if(stage.begin(), stage.end(), [&](const core::PipelinePass& pass) {
      return pass.microbatch >= microbatches;
    });
    stage.erase(rest, stage.end());
  }
  return rounds;
}

std::vector<core::UnitPass> unit_passes(const std::vector<core::PipelinePass>& passes,
                                        const StageParameters& parameters) {
  std::vector<core::UnitPass> found;
  for (const auto& [kind, microbatch, chunk] : passes) {
    const auto [first, end] = parameters.units(chunk);
    found.push_back({core::pass_of(kind), microbatch, first, end});
  }
  return found;
}

}  // namespace troupe::apps::gpt
