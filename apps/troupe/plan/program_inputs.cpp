#include "apps/troupe/plan/program_inputs.hpp"

#include <algorithm>

#include "actors/planes/step/training_plan.hpp"
#include "apps/troupe/convert/config_command.hpp"
#include "core/errors.hpp"
#include "core/layout/arithmetic.hpp"
#include "core/layout/buffers.hpp"
#include "core/optimizer/optimizer.hpp"
#include "core/plan/placement.hpp"
#include "core/schedule/check_schedule.hpp"

namespace troupe::apps {

namespace {

/// "momentum" is sgd with a momentum.
core::Result<core::OptimizerOptions> optimizer_options(const std::string& name) {
  core::OptimizerOptions options;
  if (name == "momentum") options.momentum = 0.9;
  options.kind = name == "momentum" ? core::OptimizerKind::sgd : TRY(core::optimizer_from_name(name));
  return options;
}

core::Result<core::OptimizerSettings> optimizer_settings(const std::string& name) {
  return core::settings_of(TRY(optimizer_options(name)));
}

core::Result<core::TrainingOptions> training_options(const ProgramArguments& arguments) {
  core::TrainingOptions training;
  training.strategy = TRY(core::strategy_from_name(arguments.strategy));
  training.numerics = TRY(core::numerics_from_name(arguments.numerics));
  training.lanes = arguments.lanes();
  training.context_parallel = arguments.context_parallel;
  training.context_pieces = arguments.context_pieces;
  training.tensor_parallel = arguments.tensor_parallel;
  training.expert_parallel = arguments.expert_parallel;
  training.expert_tensor_parallel = arguments.expert_tensor_parallel;
  training.pipeline_parallel = arguments.stages;
  training.overlap = !arguments.no_overlap;
  training.optimizer_instances = arguments.outer;
  training.gathered_units = arguments.parameter_credits;
  training.staging_elements = arguments.staging_elements;
  const auto optimizer = TRY(optimizer_options(arguments.optimizer));
  training.optimizer = optimizer;
  if (core::traits_of(optimizer.kind).takes_matrices_only()) training.groups = {{1, optimizer}, {1, {}}};
  return training;
}

core::Result<void> check_sharing(const ProgramArguments& arguments) {
  const int cp = arguments.context_parallel, pieces = arguments.pieces_of_lane();
  if (cp < 1 || arguments.ranks % cp != 0) {
    return core::fail(core::Errc::invalid_argument,
                      "--context-parallel {} does not divide {} ranks; choose a number from 1 that does", cp,
                      arguments.ranks);
  }
  if (pieces % cp != 0) {
    return core::fail(core::Errc::invalid_argument,
                      "--context-pieces {} are not shared evenly by --context-parallel {}; choose a multiple "
                      "of it, or 0",
                      pieces, cp);
  }
  if (pieces == cp || arguments.numerics == "ordered") return {};
  return core::fail(core::Errc::unavailable,
                    "--context-pieces {} with --context-parallel {}: ranks have several pieces only with "
                    "--numerics ordered; use it, or --context-parallel {}",
                    pieces, cp, pieces);
}

core::Result<std::optional<core::DType>> gather_dtype(const ProgramArguments& arguments) {
  if (arguments.gather_dtype.empty()) return std::optional<core::DType>{};
  return std::optional(TRY(core::dtype_from_name(arguments.gather_dtype)));
}

/// An optimizer of matrices has group 0, AdamW the rest.
std::vector<core::ParameterSpec> parameter_specs(const core::StageTensors& stage, core::DType dtype,
                                                 std::optional<core::DType> gathered, bool grouped) {
  std::vector<core::ParameterSpec> specs;
  for (const auto& [tensor, shape] : stage.tensors) {
    auto& spec = specs.emplace_back();
    spec.name = tensor.name;
    spec.shape = shape;
    spec.dtype = dtype;
    spec.is_expert = tensor.expert >= 0;
    if (tensor.split && shape[*tensor.split] != tensor.shape[*tensor.split]) {
      spec.global_shape = tensor.shape;
      spec.offset.assign(shape.size(), 0);
    }
    if (tensor.unit) spec.unit = core::UnitIndex{static_cast<std::uint32_t>(*tensor.unit)};
    const bool whole =
        core::is_whole_parameter({.dimensions = shape.size(), .embedding_or_output = tensor.is_embedding});
    spec.group = grouped && !whole ? 1 : 0;
    if (whole && !tensor.is_used_in_parts) spec.gather_dtype = gathered;
  }
  return specs;
}

/// The passes of the stage whose chunks have these units.
core::Result<std::vector<core::UnitPass>> stage_passes(const ProgramArguments& arguments,
                                                       const std::vector<std::pair<int, int>>& units) {
  if (arguments.stages == 1) return std::vector<core::UnitPass>{};
  const auto schedule = TRY(schedule_of(arguments));
  std::vector<core::UnitPass> passes;
  for (const auto& [kind, microbatch, chunk] : schedule.passes[static_cast<std::size_t>(arguments.stage)]) {
    const auto [first, end] = units[static_cast<std::size_t>(chunk)];
    passes.push_back({core::pass_of(kind), microbatch, first, end});
  }
  return passes;
}

/// What a pipeline stage does with its units, as many of them in each chunk. What lies outside of units is
/// read in the first chunk.
core::Result<std::vector<core::UnitPass>> stage_passes(const ProgramArguments& arguments) {
  if (arguments.stages == 1) return std::vector<core::UnitPass>{};
  if (arguments.stage >= arguments.stages) {
    return core::fail(core::Errc::invalid_argument, "--stage {}: there are {} stages, counted from 0",
                      arguments.stage, arguments.stages);
  }
  if (arguments.units < 1 || arguments.units % arguments.chunks != 0) {
    return core::fail(core::Errc::invalid_argument,
                      "--chunks {}: chunks of a stage have as many units each, which {} units do not give",
                      arguments.chunks, arguments.units);
  }
  const int each = arguments.units / arguments.chunks, resident = arguments.resident_elements > 0 ? 1 : 0;
  std::vector<std::pair<int, int>> units;
  for (int chunk = 0; chunk < arguments.chunks; ++chunk)
    units.emplace_back(chunk == 0 ? 0 : resident + chunk * each, resident + (chunk + 1) * each);
  return stage_passes(arguments, units);
}

/// The order of a program whose units outside of the order come first: backward reaches those last.
core::Result<core::UnitOrder> unit_order(const ProgramArguments& arguments) {
  const auto order =
      TRY(core::normalised({arguments.forward_order, arguments.backward_order}, arguments.units));
  if (order.empty() || arguments.resident_elements == 0) return order;
  core::UnitOrder shifted{{0}, {}};
  for (const int unit : order.forward) shifted.forward.push_back(unit + 1);
  for (const int unit : order.backward) shifted.backward.push_back(unit + 1);
  shifted.backward.push_back(0);
  return shifted;
}

std::vector<core::UnitIndex> unit_indices(const std::vector<int>& numbers) {
  std::vector<core::UnitIndex> units;
  for (const int number : numbers) units.push_back({static_cast<std::uint32_t>(number)});
  return units;
}

}  // namespace

core::Result<core::PipelineSchedule> schedule_of(const ProgramArguments& arguments) {
  auto schedule = TRY(core::plan_schedule({.kind = TRY(core::schedule_kind_from_name(arguments.schedule)),
                                           .stages = arguments.stages,
                                           .chunks = arguments.chunks,
                                           .microbatches = arguments.rounds}));
  TRY(core::check_schedule(schedule));
  return schedule;
}

std::int64_t PlannedModel::elements() const {
  std::int64_t all = 0;
  for (const auto& tensor : tensors) {
    std::int64_t elements = 1;
    for (const auto extent : tensor.shape) elements *= extent;
    all += elements;
  }
  return all;
}

core::Result<PlannedModel> read_planned_model(const std::string& path) {
  core::ConvertOptions options;
  options.class_defaults = true;
  PlannedModel model;
  model.config = TRY(core::from_huggingface(TRY(read_config(path)), options)).config;
  model.tensors = TRY(core::unit_tensors(model.config));
  return model;
}

core::Result<core::ProgramInputs> program_inputs(const ProgramArguments& arguments) {
  const auto strategy = TRY(core::strategy_from_name(arguments.strategy));
  TRY(check_sharing(arguments));
  const int cp = arguments.context_parallel;
  const auto mesh =
      TRY(core::Mesh::create({.cp = cp, .dp = arguments.ranks / cp, .optimizer_instances = arguments.outer}));
  auto inputs = TRY(core::inputs_of(strategy, mesh));
  inputs.numerics = TRY(core::numerics_from_name(arguments.numerics));
  inputs.lanes = arguments.lanes();
  inputs.pieces = {arguments.pieces_of_lane(), arguments.own_pieces()};
  const auto optimizer = TRY(optimizer_settings(arguments.optimizer));
  const auto gradient = TRY(core::dtype_from_name(arguments.gradient_dtype));
  const auto wire = TRY(core::dtype_from_name(arguments.wire_dtype));
  const auto main = TRY(core::dtype_from_name(arguments.main_dtype));
  inputs.overlap = !arguments.no_overlap;
  inputs.parameter_credits = arguments.parameter_credits;
  inputs.separate_streams = false;  // as sessions have it
  inputs.gradient_credits = arguments.gradient_credits;
  inputs.staging_elements = arguments.staging_elements;
  const auto gathered = TRY(gather_dtype(arguments));
  inputs.classes = {
      {.storage = TRY(core::dtype_from_name(arguments.dtype)),
       .gradient = gradient,
       .wire = core::sent_dtype(gradient, wire),
       .main = main,
       .layout = core::traits_of(optimizer.kind).layout,
       .optimizer = {arguments.optimizer, {core::states_of(optimizer).size(), core::DType::f32}},
       .gathered = gathered}};
  TRY(core::check_gathered(inputs.classes[0]));
  std::int64_t shards = 1;
  for (const core::Placements* role :
       {&inputs.placements.parameters, &inputs.placements.gradients, &inputs.placements.optimizer}) {
    shards = std::max(shards, core::shard_count(*role, inputs.domains[0].sizes));
  }
  const auto part_multiple = inputs.classes[0].part_multiple();
  const std::int64_t multiple = shards == 1 && !inputs.classes[0].gathered
                                    ? 1
                                    : core::bucket_divisor(static_cast<int>(shards), false, part_multiple);
  const auto unit = [&](core::Residency residency, std::int64_t elements) {
    core::Unit made{.residency = residency};
    if (elements > 0) made.tensors = {{.elements = core::round_up(elements, multiple)}};
    return made;
  };
  if (arguments.resident_elements > 0) {
    inputs.units.push_back(unit(core::Residency::resident, arguments.resident_elements));
  }
  inputs.units.items().insert(inputs.units.end(), static_cast<std::size_t>(arguments.units),
                              unit(core::Residency::on_demand, arguments.unit_elements));
  auto passes = TRY(stage_passes(arguments));
  auto order = TRY(unit_order(arguments));
  const auto& gradients = inputs.placements.gradients;
  // Sessions decide the same way: where each round moves something.
  const bool in_rounds =
      std::find(gradients.begin(), gradients.end(), core::Placement::flat_shard) != gradients.end();
  if (in_rounds) {
    inputs.passes = std::move(passes);
    inputs.order = std::move(order);
  }
  return inputs;
}

core::Result<core::ProgramInputs> program_inputs(const ProgramArguments& arguments,
                                                 const core::StageTensors& stage) {
  TRY(check_sharing(arguments));
  const auto training = TRY(training_options(arguments));
  auto specs = parameter_specs(stage, TRY(core::dtype_from_name(arguments.dtype)),
                               TRY(gather_dtype(arguments)), !training.groups.empty());
  const int world = arguments.ranks * arguments.tensor_parallel * arguments.stages;
  auto passes = TRY(stage_passes(arguments, stage.units));
  const core::DeclaredOrder order{unit_indices(arguments.forward_order),
                                  unit_indices(arguments.backward_order)};
  auto inputs =
      TRY(actors::plan_training(std::move(specs), training, {world}, std::move(passes), order)).inputs;
  inputs.gradient_credits = arguments.gradient_credits;
  for (auto& tensor_class : inputs.classes) {
    tensor_class.gradient = TRY(core::dtype_from_name(arguments.gradient_dtype));
    tensor_class.wire =
        core::sent_dtype(tensor_class.gradient, TRY(core::dtype_from_name(arguments.wire_dtype)));
    tensor_class.main = TRY(core::dtype_from_name(arguments.main_dtype));
  }
  return inputs;
}

}  // namespace troupe::apps
