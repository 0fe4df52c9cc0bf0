#pragma once

#include <chrono>
#include <vector>

#include "actors/planes/step/rank_program.hpp"
#include "actors/planes/step/training_plan.hpp"
#include "actors/roles/conductor.hpp"
#include "actors/roles/gradient_bucket.hpp"
#include "actors/roles/parameter_shard.hpp"
#include "actors/roles/rank_supervisor.hpp"

namespace troupe::actors {

/// What each role of one rank has to know about the job.
ConductorConfig conductor_config(const TrainingPlan& plan, const RankProgram& program,
                                 std::chrono::nanoseconds deadline);
RankSupervisorConfig supervisor_config(const TrainingPlan& plan, const RankProgram& program,
                                       std::chrono::nanoseconds join_deadline);
GradientBucketConfig bucket_config(const TrainingPlan& plan, const RankProgram& program,
                                   core::BucketIndex bucket);
/// Buckets in the order in which the next forward reaches their units.
std::vector<core::BucketIndex> forward_order(const TrainingPlan& plan, const RankProgram& program);
ParameterShardConfig shard_config(const TrainingPlan& plan, const RankProgram& program,
                                  core::BucketIndex bucket);

}  // namespace troupe::actors
