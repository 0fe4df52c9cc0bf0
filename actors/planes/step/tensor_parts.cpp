#include "actors/planes/step/tensor_parts.hpp"

#include <algorithm>
#include <string_view>

#include "core/errors.hpp"
#include "core/indices.hpp"
#include "core/optimizer/optimizer.hpp"

namespace troupe::actors {

namespace {

constexpr std::string_view kTensorGroup = "tp";
constexpr std::string_view kStages = "pp";

/// Checks the parts of tensors under tensor parallelism.
core::Result<void> check_cut(const TrainingPlan& plan) {
  for (const auto index : plan.specs.indices()) {
    const auto& spec = plan.specs[index];
    if (spec.global_shape.empty()) continue;
    const bool has_others =
        plan.options.tensor_parallel > 1 || (spec.is_expert && plan.options.expert_parts() > 1);
    if (!has_others && spec.global_shape != spec.shape) {
      return core::fail(core::Errc::invalid_argument,
                        "parameter {} is a part of a tensor, but there are no other ranks to keep the rest: "
                        "tensor_parallel is 1",
                        spec.name);
    }
    if (spec.global_shape != spec.shape &&
        core::traits_of(plan.group_of(index).optimizer.kind).takes_matrices_only()) {
      return core::fail(
          core::Errc::invalid_argument,
          "parameter {} is a part of a matrix, and its optimizer steps whole ones only; give it a "
          "group with another optimizer",
          spec.name);
    }
  }
  return {};
}

/// Stages add up what is all theirs, in buckets that lie alike on all of them.
core::Result<void> check_sum_of_stages(const core::ParameterSpec& spec, const TrainingPlan& plan) {
  if (spec.is_expert) {
    return core::fail(
        core::Errc::invalid_argument,
        "parameter {} is an expert's, which one stage has; its gradient cannot be summed over \"{}\"",
        spec.name, kStages);
  }
  const auto gradients = TRY(core::placements_of(plan.options.strategy)).gradients;
  const bool each_round =
      std::find(gradients.begin(), gradients.end(), core::Placement::flat_shard) != gradients.end();
  if (!each_round || plan.options.pipeline_parallel == 1) return {};
  return core::fail(
      core::Errc::invalid_argument,
      "the gradient of parameter {} is summed over the stages, which {} would reduce pass by pass, "
      "and each stage has passes of its own; use ddp or zero1",
      spec.name, core::name_of(plan.options.strategy));
}

/// Checks the gradients that are also summed over a group.
core::Result<void> check_sums(const TrainingPlan& plan) {
  for (const auto& spec : plan.specs) {
    if (spec.also_sum.empty()) continue;
    if (spec.also_sum != kTensorGroup && spec.also_sum != kStages) {
      return core::fail(
          core::Errc::invalid_argument,
          "the gradient of parameter {} is to be summed over the group \"{}\", found no such sum; "
          "\"{}\" and \"{}\" are the groups that ParameterSpec::also_sum may name",
          spec.name, spec.also_sum, kTensorGroup, kStages);
    }
    if (spec.also_sum == kStages) TRY(check_sum_of_stages(spec, plan));
    if (!spec.global_shape.empty()) {
      return core::fail(
          core::Errc::invalid_argument,
          "parameter {} is a part of a tensor, of which each rank of the group \"{}\" has another, "
          "so gradients of it cannot be summed over them; leave out global_shape or also_sum",
          spec.name, spec.also_sum);
    }
  }
  return {};
}

}  // namespace

std::optional<core::GroupKind> group_of_sum(const core::ParameterSpec& spec, const core::Mesh& mesh) {
  if (!spec.trainable || spec.also_sum.empty()) return std::nullopt;
  const auto kind = spec.also_sum == kStages ? core::GroupKind::pp : core::GroupKind::tp;
  return mesh.group_size(kind) > 1 ? std::optional(kind) : std::nullopt;
}

core::Result<void> check_tensor_parts(const TrainingPlan& plan) {
  TRY(check_cut(plan));
  return check_sums(plan);
}

}  // namespace troupe::actors
