#include "actors/planes/step/training_plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "actors/planes/step/declared_operations.hpp"
#include "actors/planes/step/declared_order.hpp"
#include "actors/planes/step/expert_options.hpp"
#include "actors/planes/step/finalisation.hpp"
#include "actors/planes/step/optimizer_step.hpp"
#include "actors/planes/step/parameter_list.hpp"
#include "actors/planes/step/pass_list.hpp"
#include "actors/planes/step/tensor_parts.hpp"
#include "actors/planes/step/training_numbers.hpp"
#include "actors/planes/step/verdict.hpp"
#include "core/errors.hpp"
#include "core/indices.hpp"
#include "core/layout/buffer_layout.hpp"
#include "core/layout/buffers.hpp"
#include "core/optimizer/loss_scaler.hpp"
#include "core/program/domain_lanes.hpp"

namespace troupe::actors {

namespace {

std::optional<std::int64_t> bucket_size(const core::TrainingOptions& options, int data_parallel) {
  if (!options.overlap) return std::nullopt;
  if (options.bucket_elements) return options.bucket_elements;
  return std::max<std::int64_t>(40'000'000, std::int64_t{1'000'000} * data_parallel);
}

bool has_shards(const core::Placements& placements) {
  return std::find(placements.begin(), placements.end(), core::Placement::flat_shard) != placements.end();
}

/// Cuts the parameters into buckets, and buckets into the units of a program.
class BucketPlanner {
 public:
  explicit BucketPlanner(TrainingPlan& plan) : plan_(plan) {}

  core::Result<void> run() {
    assign_buffers();
    const auto& table = plan_.inputs.placements;
    const bool declared = has_shards(table.parameters) || has_shards(table.gradients);
    const bool some = std::any_of(plan_.specs.begin(), plan_.specs.end(),
                                  [](const core::ParameterSpec& spec) { return spec.unit.has_value(); });
    if (!declared) return by_size();
    if (some) return as_declared();
    return core::fail(
        core::Errc::invalid_argument,
        "{} gathers parameters and reduces gradients unit by unit, but no parameter has a unit; "
        "set ParameterSpec::unit, or use zero1",
        core::name_of(plan_.options.strategy));
  }

 private:
  void assign_buffers() {
    plan_.parameters.resize(plan_.specs.size());
    for (const auto index : plan_.specs.indices()) {
      const auto dtype = plan_.specs[index].dtype;
      const bool trainable = plan_.specs[index].trainable;
      const auto& optimizer = plan_.group_of(index).optimizer;
      const auto states = trainable ? core::states_of(optimizer) : std::span<const std::string_view>{};
      const bool whole = trainable && core::traits_of(optimizer.kind).takes_matrices_only();
      const bool is_spread = plan_.specs[index].is_expert && plan_.options.expert_ranks() > 1;
      const std::size_t domain = is_spread ? 1 : 0;
      const auto also_sum = group_of_sum(plan_.specs[index], plan_.mesh);
      const auto gathered = plan_.specs[index].gather_dtype;
      const auto gradient = gradient_dtype_of(plan_.specs[index], plan_.options);
      auto found = std::find_if(plan_.buffers.begin(), plan_.buffers.end(), [&](const auto& b) {
        return b.dtype == dtype && b.gradient_dtype == gradient && b.trainable == trainable &&
               b.whole_matrices == whole && b.domain == domain && b.also_sum == also_sum &&
               b.gathered == gathered &&
               std::equal(b.states.begin(), b.states.end(), states.begin(), states.end());
      });
      if (found == plan_.buffers.end()) {
        plan_.buffers.push_back(
            {dtype, gradient, {}, 0, states, whole, trainable, domain, also_sum, gathered});
        found = plan_.buffers.end() - 1;
      }
      found->parameters.push_back(index);
      const auto place = static_cast<std::size_t>(found - plan_.buffers.begin());
      buffer_of_.push_back(core::index_at<core::BufferIndex>(place));
    }
  }

  core::Result<core::BufferLayout> lay_out(const TrainingBuffer& buffer,
                                           const std::vector<core::ParameterIndex>& members,
                                           std::optional<std::int64_t> size) const {
    std::vector<core::LayoutParameter> parameters;
    for (const auto index : members) {
      const auto& spec = plan_.specs[index];
      parameters.push_back({spec.elements(), spec.shared_embedding});
      if (buffer.whole_matrices) {
        parameters.back().rows = spec.shape[0];
        parameters.back().columns = spec.shape[1];
      }
    }
    const auto shards = static_cast<int>(
        core::shard_count(plan_.inputs.placements.optimizer, plan_.inputs.domains[buffer.domain].sizes));
    const auto part_multiple = buffer.gathered ? core::kMxPartElements : core::kShardAlignment;
    const auto sharded =
        buffer.whole_matrices ? core::LayoutPolicy::whole_parameter : core::LayoutPolicy::padded;
    if (!has_shards(plan_.inputs.placements.optimizer)) {
      // Blocks are where they would be if something were sharded.
      const auto whole = buffer.gathered ? core::LayoutPolicy::padded : core::LayoutPolicy::plain;
      return core::buffer_layout(whole, parameters, {size, shards, false, part_multiple});
    }
    return core::buffer_layout(sharded, parameters, {size, shards, false, part_multiple});
  }

  /// Appends the buckets of some parameters of a buffer to it.
  core::Result<core::BufferLayout> append(core::BufferIndex index,
                                          const std::vector<core::ParameterIndex>& members,
                                          std::optional<std::int64_t> size) {
    auto& buffer = plan_.buffers[index];
    auto layout = TRY(lay_out(buffer, members, size));
    for (auto& place : layout.parameters) {
      place.start += buffer.elements;
      place.end += buffer.elements;
    }
    for (auto& place : layout.buckets) {
      place.start += buffer.elements;
      place.end += buffer.elements;
    }
    buffer.elements += layout.elements;
    return layout;
  }

  /// The unit's parameters of a dtype are a bucket.
  core::Result<void> as_declared() {
    std::uint32_t units = 0;
    for (const auto& spec : plan_.specs) {
      if (!spec.unit) continue;
      if (spec.unit->value >= plan_.specs.size()) {
        return core::fail(core::Errc::invalid_argument,
                          "parameter {} is in unit {}, but {} parameters make units 0 to {} at most; number "
                          "units from 0 without a gap",
                          spec.name, spec.unit->value, plan_.specs.size(), plan_.specs.size() - 1);
      }
      units = std::max(units, spec.unit->value + 1);
    }
    std::vector<std::vector<core::ParameterIndex>> members(units + 1);  // those without a unit come first
    for (const auto index : plan_.specs.indices()) {
      const auto& unit = plan_.specs[index].unit;
      members[unit ? unit->value + 1 : 0].push_back(index);
    }
    plan_.resident_units = members[0].empty() ? 0 : 1;
    if (members[0].empty()) members.erase(members.begin());
    for (std::size_t unit = 0; unit < members.size(); ++unit) {
      if (members[unit].empty()) {
        return core::fail(core::Errc::invalid_argument,
                          "unit {} has no parameters, though there are {} units; number units from 0 without "
                          "a gap",
                          unit - static_cast<std::size_t>(plan_.resident_units), units);
      }
    }
    const auto resident = static_cast<std::size_t>(plan_.resident_units);
    plan_.inputs.units.resize(members.size());
    for (std::size_t unit = 0; unit < resident; ++unit) {
      plan_.inputs.units[unit].residency = core::Residency::resident;
    }
    // Backward comes to the last unit first, where no order is declared. One that is moves no parameter.
    for (std::size_t unit = members.size(); unit-- > 0;) TRY(add_unit(unit, members[unit]));
    return {};
  }

  core::Result<void> add_unit(std::size_t unit, const std::vector<core::ParameterIndex>& members) {
    for (const auto buffer : plan_.buffers.indices()) {
      std::vector<core::ParameterIndex> own;
      for (const auto p : members) {
        if (buffer_of_[p.value] == buffer) own.push_back(p);
      }
      if (own.empty()) continue;
      const auto layout = TRY(append(buffer, own, std::nullopt));
      const auto first = plan_.buckets.size();
      for (const auto& place : layout.buckets) add_bucket(buffer, {place.start, place.end}, unit);
      assign(buffer, own, layout, [&](int bucket) {
        return core::index_at<core::BucketIndex>(first + static_cast<std::size_t>(bucket));
      });
    }
    return {};
  }

  void add_bucket(core::BufferIndex buffer, core::ElementRange range, std::size_t unit) {
    auto& tensors = plan_.inputs.units[unit].tensors;
    plan_.buckets.push_back({buffer, range, {}, static_cast<int>(unit), static_cast<int>(tensors.size())});
    tensors.push_back({.tensor_class = buffer.value,
                       .elements = range.size(),
                       .trainable = plan_.buffers[buffer].trainable});
  }

  template <class NumberOf>
  void assign(core::BufferIndex buffer, const std::vector<core::ParameterIndex>& members,
              const core::BufferLayout& layout, NumberOf number_of) {
    for (std::size_t i = 0; i < members.size(); ++i) {
      const auto& place = layout.parameters[i];
      const core::BucketIndex bucket = number_of(place.bucket);
      plan_.parameters[members[i]] = {buffer, bucket, {place.start, place.end}};
      plan_.buckets[bucket].parameters.push_back(members[i]);
    }
  }

  /// A bucket closes when it is large enough; each is a resident unit. They come in the order in which
  /// backward completes them, whichever buffer they are in.
  core::Result<void> by_size() {
    std::vector<core::BufferLayout> layouts;
    std::vector<std::vector<std::size_t>> members;
    std::vector<std::vector<core::BucketIndex>> numbers;  // of each buffer's buckets
    for (const auto b : plan_.buffers.indices()) {
      const auto own_parameters = plan_.buffers[b].parameters;
      layouts.push_back(TRY(append(b, own_parameters, bucket_size(plan_.options, plan_.data_parallel()))));
      auto& own = members.emplace_back();
      for (const auto parameter : own_parameters) own.push_back(parameter.value);
      numbers.emplace_back(layouts.back().buckets.size());
    }
    const auto order = core::ready_order(layouts, members);
    plan_.inputs.units.resize(order.size());
    plan_.resident_units = static_cast<int>(order.size());
    for (auto& unit : plan_.inputs.units) unit.residency = core::Residency::resident;
    for (const auto& [buffer, bucket] : order) {
      const auto& place = layouts[buffer].buckets[bucket];
      numbers[buffer][bucket] = core::index_at<core::BucketIndex>(plan_.buckets.size());
      const std::size_t unit = order.size() - 1 - plan_.buckets.size();
      add_bucket(core::index_at<core::BufferIndex>(buffer), {place.start, place.end}, unit);
    }
    for (const auto b : plan_.buffers.indices()) {
      assign(b, plan_.buffers[b].parameters, layouts[b.value],
             [&](int bucket) { return numbers[b.value][static_cast<std::size_t>(bucket)]; });
    }
    return {};
  }

  TrainingPlan& plan_;
  std::vector<core::BufferIndex> buffer_of_;  ///< each parameter
};

core::Result<void> plan_inputs(TrainingPlan& plan, std::vector<core::UnitPass> passes,
                               const core::DeclaredOrder& order,
                               const std::vector<core::DeclaredOperation>& operations) {
  auto& inputs = plan.inputs;
  inputs = TRY(core::inputs_of(plan.options.strategy, plan.mesh));
  inputs.numerics = plan.options.numerics;
  inputs.lanes = plan.options.lanes;
  inputs.pieces = {plan.options.pieces_of_lane(), plan.options.own_pieces()};
  inputs.overlap = plan.options.overlap;
  inputs.average_in_collective = plan.options.average_in_collective;
  inputs.finish = finish_of(plan.options);
  inputs.verdict_elements = static_cast<std::int64_t>(verdict_words()) + expert_words(plan.options);
  inputs.optimizer_scratch_bytes = static_cast<std::int64_t>(optimizer_scratch_bytes(plan));
  inputs.parameter_credits = plan.options.gathered_units;
  inputs.gradient_credits = plan.options.gathered_units;
  inputs.staging_elements = plan.options.staging_elements;
  // Kernels of two communicators that share a device may have to run in one order on all ranks (NCCL's rule);
  // on one stream they do.
  inputs.separate_streams = false;
  if ((has_shards(inputs.placements.parameters) || has_shards(inputs.placements.gradients)) &&
      plan.options.microbatches > 1) {
    return core::fail(core::Errc::invalid_argument,
                      "{} reduces gradients in every round, so that a lane is one microbatch; use {} lanes "
                      "instead of {} lanes of {} microbatches",
                      core::name_of(plan.options.strategy), plan.options.lanes * plan.options.microbatches,
                      plan.options.lanes, plan.options.microbatches);
  }
  TRY(BucketPlanner(plan).run());
  TRY(take_order(plan, order, passes));
  TRY(take_operations(plan, operations, order, !passes.empty()));
  TRY(take_passes(plan, std::move(passes)));
  for (const auto& buffer : plan.buffers) {
    std::optional<core::AlsoSum> also_sum;
    if (buffer.also_sum) also_sum = {*buffer.also_sum, plan.mesh.group_size(*buffer.also_sum)};
    inputs.classes.push_back(
        {.storage = buffer.dtype,
         .gradient = buffer.gradient_dtype,
         .wire = wire_dtype_of(buffer.dtype, plan.options),
         .main = core::DType::f32,
         .domain = buffer.domain,
         .layout = buffer.whole_matrices ? core::LayoutPolicy::whole_parameter : core::LayoutPolicy::padded,
         .optimizer = {fmt::format("{}", fmt::join(buffer.states, " ")),
                       std::vector(buffer.states.size(), core::DType::f32)},
         .also_sum = also_sum,
         .gathered = buffer.gathered});
  }
  // What cannot be planned is refused here, not when a session begins.
  TRY(plan.program({0}));
  return {};
}

std::string describe(const TrainingPlan& plan) {
  const auto& o = plan.options;
  auto text = fmt::format(
      "strategy {}\nnumerics {}\nlanes {}\nmicrobatches {}\noverlap {}\nbucket elements {}\naverage {}\n"
      "gradients in parameter dtype {}\ntensor parallel {}\npipeline parallel {}\nexpert parallel {}\n"
      "optimizer instances {}\ngathered units {}\nstaging elements {}\n"
      "unused parameters {}\nclip norm {}",
      core::name_of(o.strategy), core::name_of(o.numerics), o.lanes, o.microbatches, o.overlap,
      o.bucket_elements.value_or(-1), o.average, o.gradients_in_parameter_dtype, o.tensor_parallel,
      o.pipeline_parallel, o.expert_parallel, o.optimizer_instances, o.gathered_units, o.staging_elements,
      static_cast<int>(o.unused_parameters), o.clip_norm);
  if (o.loss_divisor != 1) text += fmt::format("\nloss divisor {}", o.loss_divisor);
  text += describe_experts(o);
  if (o.expert_parts() > 1 || o.expert_columns() > 1)
    text += fmt::format("\nexpert tensor parallel {}", o.expert_tensor_parallel);
  text += describe_finalisation(o);
  if (o.context_parallel > 1) text += fmt::format("\ncontext parallel {}", o.context_parallel);
  if (o.pieces_of_lane() > o.context_parallel) text += fmt::format("\ncontext pieces {}", o.context_pieces);
  if (o.wire_dtype != core::DType::f32) text += fmt::format("\nwire dtype {}", core::name_of(o.wire_dtype));
  text += "\n" + core::describe(o.loss_scaling);
  for (const auto& group : plan.groups) {
    text += fmt::format("\noptimizer {} learning rate factor {}", core::describe(group.optimizer),
                        group.learning_rate_factor);
  }
  return text;
}

}  // namespace

std::vector<int> TrainingPlan::coordinates(core::Rank rank) const {
  return core::coordinates_in(domain(), mesh, rank);
}

int TrainingPlan::pipeline_stage(core::Rank rank) const {
  return mesh.place_in_group(core::GroupKind::pp, rank);
}

core::Rank TrainingPlan::first_alike(core::BucketIndex bucket, core::Rank rank) const {
  const auto kind = domain_of(bucket) == 0 ? core::GroupKind::dp_cp : core::GroupKind::edp;
  return mesh.first_of_group(kind, rank);
}

int TrainingPlan::part_of_model(core::Rank rank) const {
  const int place = mesh.place_in_group(core::GroupKind::ep, rank);
  const int part = pipeline_stage(rank) * options.expert_ranks() + place;
  return part * options.expert_columns() + expert_column(rank);
}

core::Rank TrainingPlan::first_of_part(core::Rank rank) const {
  const bool spread = options.expert_ranks() > 1;
  const auto first = mesh.first_of_group(spread ? core::GroupKind::edp : core::GroupKind::tp_dp_cp, rank);
  const auto layer = mesh.group(core::GroupKind::tp, first);
  const auto columns = static_cast<std::size_t>(options.expert_columns());
  return layer[static_cast<std::size_t>(expert_column(rank)) * (layer.size() / columns)];
}

int TrainingPlan::expert_column(core::Rank rank) const {
  const int place = mesh.place_in_group(core::GroupKind::tp, rank);
  return place * options.expert_columns() / mesh.group_size(core::GroupKind::tp);
}

bool TrainingPlan::counts_in_norms(core::ParameterIndex parameter, core::Rank rank) const {
  const auto& spec = specs[parameter];
  const bool is_part = !spec.global_shape.empty();
  return !spec.is_copy && (is_part || mesh.first_of_group(core::GroupKind::tp, rank) == rank);
}

bool TrainingPlan::counts_losses(core::Rank rank) const {
  return mesh.first_of_group(core::GroupKind::tp, rank) == rank &&
         pipeline_stage(rank) == options.pipeline_parallel - 1;
}

const core::Unit& TrainingPlan::unit_of(core::BucketIndex bucket) const {
  return inputs.units[buckets[bucket].unit];
}

core::StrategyPlacements TrainingPlan::placements_of(core::BucketIndex bucket) const {
  auto placements = core::placements_in(inputs.placements, unit_of(bucket));
  if (!is_trainable(bucket)) placements.optimizer = placements.parameters;
  return placements;
}

core::ElementRange TrainingPlan::held(core::TensorRole role, core::BucketIndex bucket,
                                      core::Rank rank) const {
  const auto placements = placements_of(bucket);
  const auto at = coordinates(rank);
  switch (role) {
    case core::TensorRole::parameter:
      return held(placements.parameters, bucket, at);
    case core::TensorRole::gradient:
      return held(placements.gradients, bucket, at);
    case core::TensorRole::optimizer:
      break;
  }
  return held(placements.optimizer, bucket, at);
}

core::ElementRange TrainingPlan::held(const core::Placements& placements, core::BucketIndex bucket,
                                      const std::vector<int>& coordinates) const {
  const auto& own = inputs.domains[domain_of(bucket)];
  return core::part_of(buckets[bucket].range, placements, own.sizes,
                       core::coordinates_in(own, domain(), coordinates));
}

bool TrainingPlan::has_sharded_parameters(core::BucketIndex bucket) const {
  return unit_of(bucket).residency != core::Residency::resident && has_shards(inputs.placements.parameters);
}

bool TrainingPlan::optimizer_is_replicated() const {
  return !has_shards(inputs.placements.optimizer);
}

core::Result<TrainingPlan> plan_training(std::vector<core::ParameterSpec> specs,
                                         core::TrainingOptions options, core::WorldSize world,
                                         std::vector<core::UnitPass> passes, const core::DeclaredOrder& order,
                                         const std::vector<core::DeclaredOperation>& operations,
                                         std::shared_ptr<core::KnownPrograms> programs) {
  TrainingPlan plan;
  plan.programs = std::move(programs);
  plan.specs = core::List<core::ParameterIndex, core::ParameterSpec>(std::move(specs));
  plan.options = std::move(options);
  plan.world = world;
  const int data_parallel = TRY(data_parallel_of(plan.options, world));
  const core::MeshSizes sizes{.tp = plan.options.tensor_parallel,
                              .cp = plan.options.context_parallel,
                              .ep = std::max(plan.options.expert_ranks(), 1),
                              .dp = data_parallel,
                              .pp = plan.options.pipeline_parallel,
                              .optimizer_instances = plan.options.optimizer_instances};
  if (plan.options.lanes == 0) plan.options.lanes = sizes.dp;
  TRY(check_parameters(plan.specs));
  TRY(check_options(plan.options, sizes.dp));
  TRY(check_finalisation(plan.options, plan.specs));
  TRY(check_experts(plan.options, sizes.dp));
  TRY(check_pieces(plan.options));
  TRY(core::check(plan.options.loss_scaling));
  plan.groups = TRY(core::parameter_groups(plan.options, plan.specs));
  TRY(check_tensor_parts(plan));
  plan.mesh = TRY(core::Mesh::create(sizes));
  TRY(plan_inputs(plan, std::move(passes), order, operations));
  plan.configuration = describe(plan);
  for (const auto& line : core::lines(core::fold(plan.inputs.operations))) plan.configuration += "\n" + line;
  return plan;
}

}  // namespace troupe::actors
