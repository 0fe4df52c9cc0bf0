#include "apps/troupe/plan/step_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "actors/planes/step/verdict.hpp"
#include "core/errors.hpp"
#include "core/layout/buffers.hpp"

namespace troupe::apps {

namespace {

/// The buckets of all buffers, in the order in which backward completes them.
core::Result<std::vector<core::PlannedBucket>> plan_buckets(const StepArguments& arguments,
                                                            core::Strategy strategy, const core::Mesh& mesh) {
  const auto parameters = TRY(parse_parameters(arguments.parameters));
  const auto dtype = TRY(core::dtype_from_name(arguments.dtype));
  const auto gradient_dtype = TRY(core::dtype_from_name(arguments.gradient_dtype));
  const auto& sizes = mesh.sizes();
  const bool experts_apart = core::expert_has_own_groups(sizes.ep, sizes.etp, sizes.tp);
  std::vector<core::ParameterTraits> traits(parameters.size(), {.dtype = dtype});
  for (const std::size_t index : arguments.experts) {
    if (index >= traits.size()) {
      return core::fail(core::Errc::invalid_argument,
                        "--experts {} names no parameter; there are {}, counted from 0", index,
                        traits.size());
    }
    traits[index].expert = experts_apart;
  }
  const auto placements = TRY(core::placements_of(strategy, sizes.optimizer_instances));
  const bool sharded = placements.optimizer.back() == core::Placement::flat_shard;

  const auto buffers = core::group_into_buffers(traits, true);
  std::vector<core::BufferLayout> layouts;
  std::vector<std::vector<std::size_t>> members;
  for (const auto& buffer : buffers) {
    std::vector<core::LayoutParameter> own;
    for (const std::size_t index : buffer.parameters) own.push_back(parameters[index]);
    const auto group = buffer.key.expert ? core::GroupKind::intra_edp : core::GroupKind::intra_dp_cp;
    const core::LayoutOptions options{.bucket_size = arguments.bucket_size,
                                      .shards = mesh.group_size(group),
                                      .pad_for_bus_bandwidth = arguments.high_bus_bandwidth};
    layouts.push_back(TRY(
        core::buffer_layout(sharded ? core::LayoutPolicy::padded : core::LayoutPolicy::plain, own, options)));
    members.push_back(buffer.parameters);
  }
  std::vector<core::PlannedBucket> buckets;
  for (const auto& [buffer, bucket] : core::ready_order(layouts, members)) {
    buckets.push_back({.elements = layouts[buffer].buckets[bucket].size(),
                       .gradient_dtype = gradient_dtype,
                       .parameter_dtype = dtype,
                       .expert = buffers[buffer].key.expert});
  }
  return buckets;
}

std::string json_of(const core::Plan& plan) {
  nlohmann::ordered_json json{{"hash", fmt::format("{:016x}", plan.hash())},
                              {"entries", nlohmann::ordered_json::array()}};
  for (const auto& entry : plan.entries) {
    json["entries"].push_back({{"index", entry.index.value},
                               {"kind", core::name_of(entry.kind)},
                               {"purpose", core::name_of(entry.purpose)},
                               {"group", core::name_of(entry.group)},
                               {"bucket", entry.bucket ? static_cast<std::int64_t>(entry.bucket->value) : -1},
                               {"dtype", core::name_of(entry.dtype)},
                               {"elements", entry.elements},
                               {"bytes", entry.bytes}});
  }
  return json.dump() + "\n";
}

std::string table_of(const core::Plan& plan) {
  constexpr auto kRow = "{:>5} {:<14} {:<23} {:<14} {:>5} {:>6} {:<7} {:>14}\n";
  std::string text = fmt::format(kRow, "entry", "collective", "purpose", "group", "ranks", "bucket", "dtype",
                                 "bytes per rank");
  for (const auto& entry : plan.entries) {
    fmt::format_to(std::back_inserter(text), kRow, entry.index.value, core::name_of(entry.kind),
                   core::name_of(entry.purpose), core::name_of(entry.group), entry.elements.size(),
                   entry.bucket ? fmt::format("{}", entry.bucket->value) : "-", core::name_of(entry.dtype),
                   entry.bytes);
  }
  return text + fmt::format("\nplan {:016x}\n", plan.hash());
}

}  // namespace

core::Result<core::Plan> plan_of(const StepArguments& arguments) {
  core::StepDescription step;
  step.strategy = TRY(core::strategy_from_name(arguments.strategy));
  step.numerics = TRY(core::numerics_from_name(arguments.numerics));
  const auto mesh = TRY(core::Mesh::create(arguments.mesh, arguments.order));
  step.lanes = arguments.lanes != 0 ? arguments.lanes : mesh.group_size(core::GroupKind::dp_cp);
  step.buckets = TRY(plan_buckets(arguments, step.strategy, mesh));
  step.verdict_elements = static_cast<std::int64_t>(actors::verdict_words());
  return core::plan_step(step, mesh);
}

core::Result<std::string> report_step(const StepArguments& arguments) {
  const auto plan = TRY(plan_of(arguments));
  return arguments.json ? json_of(plan) : table_of(plan);
}

}  // namespace troupe::apps
