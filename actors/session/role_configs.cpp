#include "actors/session/role_configs.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/hash.hpp"
#include "core/indices.hpp"
#include "core/program/program_text.hpp"

namespace troupe::actors {

using messages::Role;

namespace {

messages::Address owner_of(const PlannedLaunch& launch, core::Rank rank) {
  if (launch.is_verdict()) return {rank, Role::rank_supervisor, 0};
  const auto role = launch.moves_gradients() ? Role::gradient_bucket : Role::parameter_shard;
  return {rank, role, launch.bucket->value};
}

FinalSum final_sum_of(const PlannedLaunch& launch, const RankProgram& program) {
  if (launch.is_verdict() || !launch.moves_gradients() || !program.also_sum(*launch.bucket)) {
    return FinalSum::none;
  }
  if (launch.last_reduction) return FinalSum::awaits;
  return launch.completes ? FinalSum::is : FinalSum::none;
}

/// In the trainer's numbering: the units before those are not the trainer's.
std::string listed(const std::vector<int>& units, int resident) {
  std::vector<int> own;
  for (const int unit : units) {
    if (unit >= resident) own.push_back(unit - resident);
  }
  return fmt::format("{}", fmt::join(own, ","));
}

/// Everything that ranks must agree on: the parameters, where they are, then the collectives. What parameters
/// are comes first, because a parameter that ranks disagree about also moves others.
std::vector<std::string> agreed_lines(const TrainingPlan& plan, const RankProgram& program) {
  std::vector<std::string> lines;
  for (const auto& spec : plan.specs) {
    auto line =
        fmt::format("parameter {} {} [{}]", spec.name, core::name_of(spec.dtype), fmt::join(spec.shape, ","));
    if (!spec.global_shape.empty()) line += fmt::format(" of [{}]", fmt::join(spec.global_shape, ","));
    line +=
        fmt::format(" decays={} group={}{}", spec.weight_decay, spec.group, spec.trainable ? "" : " frozen");
    if (!spec.also_sum.empty()) line += fmt::format(" summed over {}", spec.also_sum);
    if (spec.gather_dtype) line += fmt::format(" gathered as {}", core::name_of(*spec.gather_dtype));
    lines.push_back(std::move(line));
  }
  for (const auto p : plan.specs.indices()) {
    const auto& place = plan.parameters[p];
    lines.push_back(fmt::format("layout of {} bucket={} elements={}..{}", plan.specs[p].name,
                                place.bucket.value, place.range.start, place.range.end));
  }
  if (const auto& order = plan.inputs.order; !order.empty()) {
    lines.push_back("order of forward " + listed(order.forward, plan.resident_units));
    lines.push_back("order of backward " + listed(order.backward, plan.resident_units));
  }
  // Programs follow from the same inputs on all ranks; if ranks have different programs, rank 0's stands for
  // the inputs.
  const bool is_first = program.coordinates() == plan.coordinates({0});
  const auto first = is_first ? program.program() : program_of(plan, {0});
  const auto compared = plan.programs ? plan.programs->lines(first) : core::compared_lines(first);
  lines.insert(lines.end(), compared.begin(), compared.end());
  return lines;
}

}  // namespace

std::vector<core::BucketIndex> forward_order(const TrainingPlan& plan, const RankProgram& program) {
  const auto clock = program.clock();
  const auto begins = [&](core::BucketIndex bucket) {
    return clock.at({core::Phase::update, plan.buckets[bucket].unit}, 0);
  };
  std::vector<core::BucketIndex> order;
  for (const auto bucket : plan.buckets.indices()) order.push_back(bucket);
  std::reverse(order.begin(), order.end());
  std::stable_sort(order.begin(), order.end(),
                   [&](core::BucketIndex a, core::BucketIndex b) { return begins(a) < begins(b); });
  return order;
}

ConductorConfig conductor_config(const TrainingPlan& plan, const RankProgram& program,
                                 std::chrono::nanoseconds deadline) {
  ConductorConfig config;
  config.rank = program.rank();
  config.deadline = deadline;
  config.entries.reserve(program.launches().size());
  std::vector<std::pair<core::Communicator, std::uint64_t>> known;
  const auto hash_of = [&](const core::Communicator& communicator) {
    const auto found = std::ranges::find(known, communicator, [](const auto& one) { return one.first; });
    if (found != known.end()) return found->second;
    const auto first = plan.mesh.first_of_group(communicator.group, program.rank());
    const auto text = fmt::format("{} of rank {}", core::describe(communicator), first.value);
    return known.emplace_back(communicator, core::hash64(text)).second;
  };
  for (const auto& launch : program.launches()) {
    config.entries.push_back({describe(launch), owner_of(launch, program.rank()),
                              !launch.is_verdict() && launch.publishes(), launch.entry->stream,
                              hash_of(core::communicator_of(*launch.entry)), launch.entry->alike,
                              final_sum_of(launch, program)});
  }
  return config;
}

RankSupervisorConfig supervisor_config(const TrainingPlan& plan, const RankProgram& program,
                                       std::chrono::nanoseconds join_deadline) {
  RankSupervisorConfig config;
  config.rank = program.rank();
  config.world = plan.world;
  config.stage = plan.part_of_model(program.rank());
  config.buckets = static_cast<std::uint32_t>(plan.buckets.size());
  for (const auto bucket : plan.buckets.indices()) config.frozen_buckets += plan.is_trainable(bucket) ? 0 : 1;
  config.forward = forward_order(plan, program);
  for (const auto entry : core::indices<core::PlanEntryIndex>(program.launches().size())) {
    if (program.launch(entry).is_verdict()) config.verdict_entry = entry;
  }
  auto lines = agreed_lines(plan, program);
  config.plan_hash = core::hash64(fmt::format("{}", fmt::join(lines, "\n")));
  config.plan_lines = plan.programs ? plan.programs->share(std::move(lines))
                                    : std::make_shared<const core::Lines>(std::move(lines));
  config.configuration = plan.configuration;
  config.clip_norm = plan.options.clip_norm;
  config.large_gradient_factor = plan.options.large_gradient_factor;
  config.join_deadline = join_deadline;
  return config;
}

GradientBucketConfig bucket_config(const TrainingPlan& plan, const RankProgram& program,
                                   core::BucketIndex bucket) {
  GradientBucketConfig config;
  config.rank = program.rank();
  config.bucket = bucket;
  config.parameters = plan.buckets[bucket].parameters;
  for (auto parameter : config.parameters) config.names.push_back(plan.specs[parameter].name);
  for (const auto& lane : program.rounds()) config.rounds.push_back({lane.value_or(core::Lane{-1}), {}});
  for (const auto entry : program.launches_of(bucket)) {
    const auto& launch = program.launch(entry);
    if (launch.moves_gradients())
      config.rounds[static_cast<std::size_t>(launch.round)].entries.push_back(entry);
  }
  config.overlap = plan.options.overlap && !program.program().ready_at_points;
  config.unused = plan.options.unused_parameters;
  return config;
}

ParameterShardConfig shard_config(const TrainingPlan& plan, const RankProgram& program,
                                  core::BucketIndex bucket) {
  ParameterShardConfig config;
  config.rank = program.rank();
  config.bucket = bucket;
  for (const auto entry : program.launches_of(bucket)) {
    const auto& launch = program.launch(entry);
    if (!launch.moves_gradients() && launch.publishes()) config.gather_entries.push_back(entry);
  }
  config.trainable = plan.is_trainable(bucket);
  return config;
}

}  // namespace troupe::actors
