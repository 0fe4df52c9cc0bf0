#include "actors/planes/step/optimizer_step.hpp"

#include <algorithm>

#include "core/indices.hpp"

namespace troupe::actors {

namespace {

gpu::MatrixShape matrix_of(const core::ParameterSpec& parameter) {
  return {static_cast<std::size_t>(parameter.shape[0]), static_cast<std::size_t>(parameter.shape[1])};
}

}  // namespace

void step_optimizer(const OptimizerStep& step, const gpu::ParameterStep& memory,
                    std::span<const gpu::BufferView> states, gpu::BufferView scratch,
                    gpu::StreamView stream) {
  const auto& o = step.group.optimizer;
  const double learning_rate = step.learning_rate * step.group.learning_rate_factor;
  const double weight_decay = step.parameter.weight_decay ? o.weight_decay : 0;
  switch (o.kind) {
    case core::OptimizerKind::sgd:
      gpu::sgd_step({learning_rate, o.momentum, weight_decay, false}, memory,
                    states.empty() ? gpu::BufferView{} : states[0], stream);
      return;
    case core::OptimizerKind::adam:
    case core::OptimizerKind::adamw:
      gpu::adam_step({.learning_rate = learning_rate,
                      .beta1 = o.beta1,
                      .beta2 = o.beta2,
                      .epsilon = o.epsilon,
                      .weight_decay = weight_decay,
                      .decoupled_weight_decay = o.kind == core::OptimizerKind::adamw},
                     step.number, memory, {states[0], states[1]}, stream);
      return;
    case core::OptimizerKind::lion:
      gpu::lion_step({learning_rate, o.beta1, o.beta2, weight_decay}, memory, states[0], stream);
      return;
    case core::OptimizerKind::muon:
      const auto& shape = step.parameter.shape;
      gpu::muon_step({.learning_rate = learning_rate,
                      .momentum = o.momentum,
                      .weight_decay = weight_decay,
                      .nesterov = o.nesterov,
                      .scale = core::muon_scale(o.scale, shape[0], shape[1]),
                      .steps = o.newton_schulz_steps,
                      .coefficients = o.coefficients,
                      .epsilon = o.epsilon},
                     matrix_of(step.parameter), memory, states[0], scratch, stream);
      return;
  }
}

std::size_t optimizer_scratch_bytes(const TrainingPlan& plan) {
  std::size_t bytes = 0;
  for (const auto p : plan.specs.indices()) {
    if (!plan.specs[p].trainable || plan.group_of(p).optimizer.kind != core::OptimizerKind::muon) continue;
    bytes = std::max(bytes, gpu::muon_scratch_bytes(matrix_of(plan.specs[p])));
  }
  return bytes;
}

}  // namespace troupe::actors
