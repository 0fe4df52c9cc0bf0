#pragma once

#include <chrono>

#include "actors/conductor/machine.hpp"
#include "actors/engine/job.hpp"
#include "actors/gradient_bucket/machine.hpp"
#include "actors/parameter_shard/machine.hpp"
#include "actors/rank_supervisor/machine.hpp"

namespace troupe::actors {

/// What each role of one rank has to know of the job.
ConductorConfig conductor_config(const Job& job, core::Rank rank, std::chrono::nanoseconds deadline);
RankSupervisorConfig supervisor_config(const Job& job, core::Rank rank,
                                       std::chrono::nanoseconds join_deadline);
GradientBucketConfig bucket_config(const Job& job, core::Rank rank, std::uint32_t bucket);
ParameterShardConfig shard_config(const Job& job, core::Rank rank, std::uint32_t bucket);

}  // namespace troupe::actors
