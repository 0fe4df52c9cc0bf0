#include "apps/troupe/plan/program_inputs.hpp"

#include <algorithm>

#include "core/errors.hpp"
#include "core/layout/arithmetic.hpp"
#include "core/optimizer/optimizer.hpp"
#include "core/program/shard_map.hpp"

namespace troupe::apps {

namespace {

/// "momentum" is sgd with a momentum.
core::Result<core::OptimizerSettings> optimizer_settings(const std::string& name) {
  core::OptimizerOptions options;
  if (name == "momentum") options.momentum = 0.9;
  options.kind = name == "momentum" ? core::OptimizerKind::sgd : TRY(core::optimizer_from_name(name));
  return core::settings_of(options);
}

}  // namespace

core::Result<core::ProgramInputs> program_inputs(const ProgramArguments& arguments) {
  const auto strategy = TRY(core::strategy_from_name(arguments.strategy));
  const auto mesh = TRY(core::Mesh::create({.dp = arguments.ranks, .optimizer_instances = arguments.outer}));
  auto inputs = TRY(core::inputs_of(strategy, mesh));
  inputs.numerics = TRY(core::numerics_from_name(arguments.numerics));
  inputs.lanes = arguments.ranks * arguments.rounds;
  const auto optimizer = TRY(optimizer_settings(arguments.optimizer));
  inputs.overlap = !arguments.no_overlap;
  inputs.parameter_credits = arguments.parameter_credits;
  inputs.separate_streams = false;  // as sessions have it
  inputs.gradient_credits = arguments.gradient_credits;
  inputs.staging_elements = arguments.staging_elements;
  inputs.classes = {
      {.storage = TRY(core::dtype_from_name(arguments.dtype)),
       .gradient = TRY(core::dtype_from_name(arguments.gradient_dtype)),
       .wire = TRY(core::dtype_from_name(arguments.wire_dtype)),
       .main = TRY(core::dtype_from_name(arguments.main_dtype)),
       .layout = core::traits_of(optimizer.kind).layout,
       .optimizer = {arguments.optimizer, {core::states_of(optimizer).size(), core::DType::f32}}}};
  std::int64_t shards = 1;
  for (const core::Placements* role :
       {&inputs.placements.parameters, &inputs.placements.gradients, &inputs.placements.optimizer}) {
    shards = std::max(shards, core::shard_count(*role, inputs.domains[0].sizes));
  }
  const std::int64_t multiple = shards == 1 ? 1 : core::bucket_divisor(static_cast<int>(shards), false);
  const auto unit = [&](core::Residency residency, std::int64_t elements) {
    core::Unit made{.residency = residency};
    if (elements > 0) made.tensors = {{.elements = core::round_up(elements, multiple)}};
    return made;
  };
  if (arguments.resident_elements > 0) {
    inputs.units.push_back(unit(core::Residency::resident, arguments.resident_elements));
  }
  inputs.units.insert(inputs.units.end(), static_cast<std::size_t>(arguments.units),
                      unit(core::Residency::on_demand, arguments.unit_elements));
  return inputs;
}

}  // namespace troupe::apps
