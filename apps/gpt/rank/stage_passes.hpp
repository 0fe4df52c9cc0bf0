#pragma once

#include <vector>

#include "actors/session/options.hpp"
#include "apps/gpt/rank/pipeline_plan.hpp"
#include "apps/gpt/rank/stage_lanes.hpp"
#include "core/schedule/pipeline_schedule.hpp"

namespace troupe::apps::gpt {

/// A rank's lanes, and the rounds that the ranks of its stage go through together: if each round gathers
/// parameters or reduces gradients, as many as the rank with the most lanes has.
struct StageDeal {
  int rounds = 0;
  int lanes = 0;

  friend auto operator<=>(const StageDeal&, const StageDeal&) = default;
};
core::Result<StageDeal> deal_of(const TrainerOptions& options, PipelinePlace place);

/// What the ranks of the pipeline would do with a lane in every round.
core::Result<core::PipelineSchedule> schedule_of_rounds(const TrainerOptions& options, StageDeal deal);
/// The schedule without the passes of rounds that have no lane.
core::PipelineSchedule played(core::PipelineSchedule rounds, int microbatches);

/// A stage's list of passes over its units, for SessionOptions::passes: a lane is a microbatch.
std::vector<core::UnitPass> unit_passes(const std::vector<core::PipelinePass>& passes,
                                        const StageParameters& parameters);

}  // namespace troupe::apps::gpt
