#include "actors/planes/step/training_numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/errors.hpp"

namespace troupe::actors {

core::Result<int> data_parallel_of(const core::TrainingOptions& options, core::WorldSize world) {
  const int tp = options.tensor_parallel, cp = options.context_parallel, pp = options.pipeline_parallel;
  const std::int64_t sharing = std::int64_t{tp} * pp * std::max(cp, 0);
  if (tp >= 1 && cp >= 1 && pp >= 1 && world.value % sharing == 0)
    return static_cast<int>(world.value / sharing);
  return core::fail(
      core::Errc::invalid_argument,
      "tensor_parallel {}{} times pipeline_parallel {} do not divide {} ranks; choose numbers from "
      "1 whose product does",
      tp, cp == 1 ? "" : fmt::format(" times context_parallel {}", cp), pp, world.value);
}

core::Result<void> check_pieces(const core::TrainingOptions& options) {
  const int pieces = options.pieces_of_lane(), cp = options.context_parallel;
  if (pieces < cp || pieces % cp != 0) {
    return core::fail(
        core::Errc::invalid_argument,
        "context_pieces {} with context_parallel {}: each of the ranks that share a lane computes "
        "as many of its pieces; choose a multiple of {}, or 0",
        pieces, cp, cp);
  }
  return {};
}

core::Result<void> check_options(const core::TrainingOptions& options, int data_parallel) {
  if (options.lanes < data_parallel) {
    return core::fail(
        core::Errc::invalid_argument,
        "{} lanes cannot be played by {} ranks: every rank plays at least one; use at least {} lanes or "
        "at most {} ranks",
        options.lanes, data_parallel, data_parallel, options.lanes);
  }
  if (options.gathered_units < 1 || options.staging_elements < 0) {
    return core::fail(core::Errc::invalid_argument,
                      "{} gathered units and {} staging elements; at least 1 unit, and 0 elements or more",
                      options.gathered_units, options.staging_elements);
  }
  if (options.microbatches < 1) {
    return core::fail(core::Errc::invalid_argument, "{} microbatches per lane; at least 1",
                      options.microbatches);
  }
  if (!std::isfinite(options.loss_divisor) || options.loss_divisor <= 0) {
    return core::fail(core::Errc::invalid_argument,
                      "losses cannot be divided by {}; give a loss divisor above 0", options.loss_divisor);
  }
  if (!(options.clip_norm >= 0)) {
    return core::fail(
        core::Errc::invalid_argument,
        "gradients cannot be clipped at the norm {}; give a clip norm above 0, or 0 for no clipping",
        options.clip_norm);
  }
  if (options.optimizer_instances < 1 || data_parallel % options.optimizer_instances != 0) {
    return core::fail(core::Errc::invalid_argument, "{} optimizer instances do not divide {} ranks",
                      options.optimizer_instances, data_parallel);
  }
  if (options.optimizer_instances > 1 && options.strategy == core::Strategy::ddp) {
    return core::fail(core::Errc::invalid_argument,
                      "optimizer instances are replicas of a sharded optimizer; ddp has none, use zero1");
  }
  if (options.gradients_in_parameter_dtype && options.numerics == core::Numerics::ordered) {
    return core::fail(
        core::Errc::invalid_argument,
        "ordered numerics keeps gradients in f32, so that a lane's sum does not depend on who adds it; "
        "use fast numerics for gradients in the parameters' dtype");
  }
  if (options.wire_dtype != core::DType::f32 && options.wire_dtype != core::DType::bf16) {
    return core::fail(
        core::Errc::invalid_argument,
        "gradients cannot be sent as {}; use f32, or bf16, which has the same range of exponents",
        core::name_of(options.wire_dtype));
  }
  return {};
}

}  // namespace troupe::actors
