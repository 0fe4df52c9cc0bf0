#include "actors/session/role_configs.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/hash.hpp"

namespace troupe::actors {

using messages::Role;

namespace {

messages::Address owner_of(const core::PlanEntry& entry, core::Rank rank) {
  const auto bucket = entry.bucket.value_or(core::BucketIndex{});
  switch (entry.purpose) {
    case core::PlanPurpose::exchange_gradients:
    case core::PlanPurpose::reduce_gradients:
    case core::PlanPurpose::reduce_across_instances:
    case core::PlanPurpose::gather_gradients:
      return {rank, Role::gradient_bucket, bucket.value};
    case core::PlanPurpose::gather_parameters:
      return {rank, Role::parameter_shard, bucket.value};
    case core::PlanPurpose::verdict:
      break;
  }
  return {rank, Role::rank_supervisor, 0};
}

/// Everything that ranks must see alike: which parameter lies where, then the collectives.
std::vector<std::string> lines_of(const TrainingPlan& plan) {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < plan.specs.size(); ++i) {
    const auto& spec = plan.specs[i];
    const auto& place = plan.parameters[i];
    lines.push_back(fmt::format("parameter {} {} [{}] decays={} group={} bucket={} elements={}..{}",
                                spec.name, core::name_of(spec.dtype), fmt::join(spec.shape, ","),
                                spec.weight_decay, spec.group, place.bucket.value, place.range.start,
                                place.range.end));
  }
  auto collectives = plan.step.lines();
  lines.insert(lines.end(), collectives.begin(), collectives.end());
  return lines;
}

}  // namespace

ConductorConfig conductor_config(const TrainingPlan& plan, core::Rank rank,
                                 std::chrono::nanoseconds deadline) {
  ConductorConfig config;
  config.rank = rank;
  config.deadline = deadline;
  for (const auto& entry : plan.step.entries) {
    config.entries.push_back({core::describe(entry), owner_of(entry, rank),
                              entry.purpose == core::PlanPurpose::gather_parameters});
  }
  return config;
}

RankSupervisorConfig supervisor_config(const TrainingPlan& plan, core::Rank rank,
                                       std::chrono::nanoseconds join_deadline) {
  RankSupervisorConfig config;
  config.rank = rank;
  config.world = plan.world;
  config.buckets = static_cast<std::uint32_t>(plan.buckets.size());
  for (const auto& entry : plan.step.entries) {
    if (entry.purpose == core::PlanPurpose::verdict) config.verdict_entry = entry.index;
  }
  config.plan_lines = lines_of(plan);
  config.plan_hash = core::hash64(fmt::format("{}", fmt::join(config.plan_lines, "\n")));
  config.configuration = plan.configuration;
  config.clip_norm = plan.options.clip_norm;
  config.join_deadline = join_deadline;
  return config;
}

GradientBucketConfig bucket_config(const TrainingPlan& plan, core::Rank rank, core::BucketIndex bucket) {
  GradientBucketConfig config;
  config.rank = rank;
  config.bucket = bucket;
  config.parameters = plan.buckets[bucket.value].parameters;
  for (auto parameter : config.parameters) config.names.push_back(plan.specs[parameter.value].name);
  const auto& held = plan.lanes[static_cast<std::size_t>(rank.value)];
  for (int lane = held.first; lane < held.end(); ++lane) config.lanes.push_back({lane});
  for (const auto& entry : plan.step.entries) {
    bool mine = owner_of(entry, rank) == messages::Address{rank, Role::gradient_bucket, bucket.value};
    if (mine) config.entries.push_back(entry.index);
  }
  config.overlap = plan.options.overlap;
  config.unused = plan.options.unused_parameters;
  return config;
}

ParameterShardConfig shard_config(const TrainingPlan& plan, core::Rank rank, core::BucketIndex bucket) {
  ParameterShardConfig config;
  config.rank = rank;
  config.bucket = bucket;
  for (const auto& entry : plan.step.entries) {
    bool mine = entry.purpose == core::PlanPurpose::gather_parameters && entry.bucket == bucket;
    if (mine) config.gather_entry = entry.index;
  }
  return config;
}

}  // namespace troupe::actors
