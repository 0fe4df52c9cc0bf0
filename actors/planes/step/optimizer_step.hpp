#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "actors/planes/step/training_plan.hpp"
#include "gpu/kernels.hpp"

namespace troupe::actors {

/// One step of a parameter, or of a part of it if its optimizer takes parts.
struct OptimizerStep {
  const core::GroupSettings& group;
  const core::ParameterSpec& parameter;
  double learning_rate = 0;  ///< before the group's factor
  std::int64_t number = 1;   ///< counts from 1
};

/// Enqueues it. `states` are those of the part, in the order of core::states_of(). What the views refer to
/// must stay alive until the stream has completed the step.
void step_optimizer(const OptimizerStep& step, const gpu::ParameterStep& memory,
                    std::span<const gpu::BufferView> states, gpu::BufferView scratch, gpu::StreamView stream);

/// Size of the scratch memory that the optimizer needs.
std::size_t optimizer_scratch_bytes(const TrainingPlan& plan);

}  // namespace troupe::actors
