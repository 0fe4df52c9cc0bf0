#include "actors/planes/step/tensor_parts.hpp"

#include <string_view>

#include "core/errors.hpp"
#include "core/indices.hpp"
#include "core/optimizer/optimizer.hpp"

namespace troupe::actors {

namespace {

constexpr std::string_view kTensorGroup = "tp";

/// Checks the parts of tensors under tensor parallelism.
core::Result<void> check_cut(const TrainingPlan& plan) {
  for (const auto index : core::indices<core::ParameterIndex>(plan.specs.size())) {
    const auto& spec = plan.specs[index.value];
    if (spec.global_shape.empty()) continue;
    const bool has_others =
        plan.options.tensor_parallel > 1 || (spec.is_expert && plan.options.expert_parts() > 1);
    if (!has_others && spec.global_shape != spec.shape) {
      return core::fail(core::Errc::invalid_argument,
                        "parameter {} is a part of a tensor, but there are no other ranks to keep the rest: "
                        "tensor_parallel is 1",
                        spec.name);
    }
    if (core::traits_of(plan.group_of(index).optimizer.kind).takes_matrices_only()) {
      return core::fail(
          core::Errc::invalid_argument,
          "parameter {} is a part of a matrix, and its optimizer steps whole ones only; give it a "
          "group with another optimizer",
          spec.name);
    }
  }
  return {};
}

/// Checks the gradients that are also summed over a group.
core::Result<void> check_sums(const TrainingPlan& plan) {
  for (const auto& spec : plan.specs) {
    if (spec.also_sum.empty()) continue;
    if (spec.also_sum != kTensorGroup) {
      return core::fail(
          core::Errc::invalid_argument,
          "the gradient of parameter {} is to be summed over the group \"{}\", found no such sum; "
          "\"{}\" is the group that ParameterSpec::also_sum may name",
          spec.name, spec.also_sum, kTensorGroup);
    }
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

core::Result<void> check_tensor_parts(const TrainingPlan& plan) {
  TRY(check_cut(plan));
  return check_sums(plan);
}

}  // namespace troupe::actors
